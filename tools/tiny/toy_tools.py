"""Toy tools, the questions that they answer, and the replies to their results.

A tool belongs to one ``Topic``. Its name, its description and the names of its arguments vary, and
one name in eight is held out of training, so that the model learns to copy them from the list.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.tiny import words
from tools.tiny.fact_tables import COUNTABLE
from tools.tiny.records import a_city, a_name
from tools.tiny.slots import Scene
from tools.tiny.stories import is_held_out
from tools.tiny.tool_turns import Tool
from tools.tiny.words import phrase_list, with_article, word_list

Values = dict[str, Any]  # the variables of a topic: numbers and texts


@dataclass(frozen=True, slots=True)
class Topic:
    """A kind of tool.

    descriptions: sentences, or what a tool tells: "the time". arguments: variable -> names that
    an argument may have. asks, answer: templates of the variables and of ``result``. result: None:
    the tool only does something, and says that it did.
    """

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    arguments: dict[str, tuple[str, ...]]
    asks: tuple[str, ...]
    answer: str
    result: Callable[[random.Random, Values], Any] | None


@dataclass(frozen=True, slots=True)
class Use:
    """A question, the call of the tool that fits it, the result and the answer after it."""

    ask: str
    name: str
    arguments: Values
    result: str
    answer: str


_LEADS = word_list("Tells Tell Returns Return Says Gets Get Shows Show Look_up")
_SALT = "toy tool"  # with this salt of the checksum, the first names of all topics are trained
_DONE = ("ok", "OK", "done", "Done.", "true", "yes")


def _weather(rng: random.Random, _: Values) -> str:
    weather, degrees = rng.choice(words.WEATHERS), rng.randint(0, 35)
    return rng.choice((weather, weather, f"{weather}, {degrees} degrees"))


def _clock(rng: random.Random, _: Values) -> str:
    return f"{rng.randint(0, 23)}:{rng.randrange(0, 60, 5):02d}"


def _place(rng: random.Random, _: Values) -> str:
    return rng.choice(list(words.PLACES.values()))


TOPICS = (
    Topic(
        word_list("weather weather get_weather weather_in show_weather weather_of sky"),
        phrase_list(
            "the weather in a city, the weather of a place, the weather, the current weather"
        ),
        {"city": word_list("city city place town where location")},
        (
            "What is the weather in {city}?",
            "What is the weather in {city}?",
            "How is the weather in {city}?",
            "What is the weather like in {city} today?",
            "Tell me the weather in {city}.",
        ),
        "The weather in {city} is {result}.",
        _weather,
    ),
    Topic(
        word_list("add add plus sum add_numbers total"),
        phrase_list(
            "Adds two numbers, Add two numbers, Add a and b, the sum of two numbers, the sum"
        ),
        {"a": word_list("a a x first n one"), "b": word_list("b b y second m two")},
        (
            "What is {a} plus {b}?",
            "What is {a} plus {b}?",
            "How much is {a} plus {b}?",
            "{a} + {b} = ?",
            "What is {a} + {b}?",
            "Add {a} and {b}.",
        ),
        "{a} plus {b} is {result}.",
        lambda _, v: v["a"] + v["b"],
    ),
    Topic(
        word_list("subtract minus take_away difference less"),
        phrase_list(
            "Subtracts a number, Subtract two numbers, the difference of two numbers, Take away"
        ),
        {"a": word_list("a a x first n"), "b": word_list("b b y second m")},
        ("What is {a} minus {b}?", "How much is {a} minus {b}?", "{a} - {b} = ?"),
        "{a} minus {b} is {result}.",
        lambda _, v: v["a"] - v["b"],
    ),
    Topic(
        word_list("multiply times product multiply_numbers mul"),
        phrase_list("Multiplies two numbers, Multiply two numbers, the product of two numbers"),
        {"a": word_list("a a x first n"), "b": word_list("b b y second m")},
        ("What is {a} times {b}?", "How much is {a} times {b}?", "{a} * {b} = ?"),
        "{a} times {b} is {result}.",
        lambda _, v: v["a"] * v["b"],
    ),
    Topic(
        word_list("find where_is find_person locate search find_friend"),
        phrase_list("Finds a person, Find a friend, where somebody is, where a person is"),
        {"name": word_list("name name person who friend")},
        ("Where is {name}?", "Where is {name} now?", "Find {name}.", "Can you find {name}?"),
        "{name} is {result}.",
        _place,
    ),
    Topic(
        word_list("age age_of get_age how_old old years"),
        phrase_list("how old a person is, the age of a person, how old somebody is"),
        {"name": word_list("name name person who friend")},
        ("How old is {name}?", "How old is {name} now?", "Tell me the age of {name}."),
        "{name} is {result} years old.",
        lambda rng, _: rng.randint(2, 99),
    ),
    Topic(
        word_list("price price_of cost get_price how_much ask_price"),
        phrase_list("the price of a thing, what a thing costs, the price, how much a thing costs"),
        {"thing": word_list("thing item item what product object")},
        (
            "What does {a_thing} cost?",
            "How much is {a_thing}?",
            "What is the price of {a_thing}?",
            "How much does {a_thing} cost?",
        ),
        "The {thing} costs {result} coins.",
        lambda rng, _: rng.randint(1, 99),
    ),
    Topic(
        word_list("time clock get_time time_in what_time hour"),
        phrase_list(
            "the time in a city, the time of day in a place, what time it is, the current time"
        ),
        {"city": word_list("city city place town where location")},
        (
            "What time is it in {city}?",
            "Tell me the time in {city}.",
            "What is the time in {city}?",
        ),
        "It is {result} in {city}.",
        _clock,
    ),
    Topic(
        word_list("buy buy_things order get shop bring"),
        phrase_list("Buys some things, Buy things, Buy things at the market, Order some things"),
        {
            "things": word_list("things item what thing items"),
            "count": word_list("count number how_many amount n"),
        },
        ("Buy {count} {things}.", "Please buy {count} {things}.", "I would like {count} {things}."),
        "I bought {count} {things}.",
        None,
    ),
    Topic(
        word_list("send give send_gift gift post deliver"),
        phrase_list("Sends a thing to a person, Give somebody a thing, Send a gift, Send a thing"),
        {
            "thing": word_list("thing item what gift object"),
            "name": word_list("name to person who friend"),
        },
        ("Send {a_thing} to {name}.", "Give {name} {a_thing}.", "Please send {name} {a_thing}."),
        "I sent {a_thing} to {name}.",
        None,
    ),
    Topic(
        word_list("paint colour paint_thing set_colour brush change_colour"),
        phrase_list("Paints a thing, Paint a thing in a colour, Give a thing a new colour"),
        {
            "thing": word_list("thing item what object"),
            "colour": word_list("colour color colour paint new_colour"),
        },
        (
            "Paint the {thing} {colour}.",
            "Make the {thing} {colour}.",
            "Please paint my {thing} {colour}.",
        ),
        "The {thing} is {colour} now.",
        None,
    ),
    Topic(
        word_list("count stock count_things how_many number_of in_stock"),
        phrase_list("Counts things, how many things there are, the number of things, Count things"),
        {"things": word_list("things thing item what items")},
        ("How many {things} are there?", "Count the {things}.", "How many {things} do we have?"),
        "There are {result} {things}.",
        lambda rng, _: rng.randint(2, 99),
    ),
)


def drawn_values(rng: random.Random) -> Values:
    """Return a value for each variable of the topics."""
    most = rng.choice((12, 99, 999))
    a, b = rng.randint(0, most), rng.randint(0, most)
    return {
        "city": a_city(rng),
        "a": max(a, b),
        "b": min(a, b),
        "name": a_name(rng),
        "thing": rng.choice(words.NOUNS),
        "things": rng.choice((*COUNTABLE, *words.TREATS)),
        "count": rng.randint(2, rng.choice((12, 99))),
        "colour": rng.choice(words.COLOURS),
    }


def _invented_word(rng: random.Random) -> str:
    parts = ["".join(rng.choices(words.SYLLABLES, k=2)) for _ in range(rng.choice((1, 2)))]
    return "_".join(parts)


def tool_name(rng: random.Random, topic: Topic, *, held_out: bool) -> str:
    """Return a name of the topic, or an invented one; it is in the held-out share, or is not."""
    while True:
        name = rng.choice(topic.names) if rng.random() < 0.6 else _invented_word(rng)
        if rng.random() < 0.15:
            name = f"{rng.choice(('my', 'do', 'run', 'ask', 'the'))}_{name}"
        if is_held_out(_SALT, name) == held_out:
            return name


@dataclass(frozen=True, slots=True)
class ToyTool:
    """A tool of a topic. arguments: variable -> the name of its argument."""

    topic: Topic
    name: str
    description: str
    arguments: dict[str, str]

    def declared(self) -> Tool:
        """Return the tool as programs declare it."""
        properties = {
            name: {"type": "integer" if variable in ("a", "b", "count") else "string"}
            for variable, name in self.arguments.items()
        }
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": parameters,
            },
        }

    def used(self, rng: random.Random) -> Use:
        """Return a question that the tool answers, with its call, result and answer."""
        topic, values = self.topic, drawn_values(rng)
        result = rng.choice(_DONE) if topic.result is None else topic.result(rng, values)
        shown: Scene = {key: str(value) for key, value in values.items()}
        shown |= {"a_thing": with_article(values["thing"]), "result": str(result)}
        arguments = {name: values[variable] for variable, name in self.arguments.items()}
        return Use(
            rng.choice(topic.asks).format_map(shown),
            self.name,
            arguments,
            _as_returned(rng, result),
            topic.answer.format_map(shown),
        )


def _as_returned(rng: random.Random, result: object) -> str:
    """Return the result of a tool as the text of a message: mostly bare, else in an object."""
    if rng.random() < 0.75:
        return str(result)
    value = result if isinstance(result, int) else f'"{result}"'
    return f'{{"{rng.choice(("result", "answer", "value"))}": {value}}}'


def _described(rng: random.Random, topic: Topic) -> str:
    text = rng.choice(topic.descriptions)
    if text[0].islower() and rng.random() < 0.7:
        text = f"{rng.choice(_LEADS).replace('_', ' ')} {text}"
    return text[0].upper() + text[1:] + rng.choice((".", ".", ""))


def draw_tool(rng: random.Random, topic: Topic, *, held_out: bool = False) -> ToyTool:
    return ToyTool(
        topic,
        tool_name(rng, topic, held_out=held_out),
        _described(rng, topic),
        {variable: rng.choice(names) for variable, names in topic.arguments.items()},
    )
