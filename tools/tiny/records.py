"""Conversations about things as JSON: a few facts in a text, and an object that holds them.

The values are in the text, or in the tables of facts; the keys are told, in words or as a layout,
or left to the model. A form that is forced on the output has keys of its own, so each fact goes by
several names, and an object has any of its facts in any order. Layout: that of ``json.dumps``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.tiny import words
from tools.tiny.conversations import NEUTRAL, Message
from tools.tiny.fact_tables import (
    CAPITALS,
    COUNTABLE,
    EATS,
    HOMES_OF,
    LEGS_OF,
    SOUNDS_OF,
    YOUNG_OF,
)
from tools.tiny.stories import invented_name, is_held_out, tell_fragment
from tools.tiny.words import phrase_list, with_article, word_list

KEYS = {
    "name": word_list("name name name who person first_name"),
    "kind": word_list("kind kind animal type"),
    "trait": word_list("trait character"),
    "age": word_list("age age age years years_old"),
    "city": word_list("city city town home lives_in"),
    "place": word_list("place place where location"),
    "count": word_list("count count number how_many amount quantity"),
    "colour": word_list("colour colour color"),
    "thing": word_list("thing thing item object what has"),
    "things": word_list("things thing item items what"),
    "food": word_list("food food likes favourite_food eats"),
    "friend": word_list("friend friend best_friend friend_name"),
    "pet": word_list("pet pet animal"),
    "pet_name": word_list("pet_name name_of_pet"),
    "weather": word_list("weather"),
    "time": word_list("time time_of_day"),
    "animal": word_list("animal animal name kind"),
    "sound": word_list("sound sound says"),
    "legs": word_list("legs legs number_of_legs"),
    "young": word_list("young baby"),
    "eats": word_list("eats food"),
    "lives": word_list("lives home where"),
    "country": word_list("country country land name"),
    "capital": word_list("capital capital city"),
}
JSON_SYSTEMS = (
    "Answer in JSON.",
    "Answer with JSON only.",
    "You answer in JSON.",
    "You write JSON.",
    "Return JSON.",
)
_ASKS_WITH_KEYS = (
    "Write it as JSON with {keys}.",
    "Write it as JSON with {keys}.",
    "Write this as JSON with {keys}.",
    "Give me JSON with {keys}.",
    "As JSON with the keys {keys}.",
    "Return JSON with {keys}.",
    "Fill in {keys} as JSON.",
    "JSON with {keys}, please.",
    "Extract {keys} as JSON.",
)
_ASKS = (
    "Write it as JSON.",
    "Write this as JSON.",
    "Give me JSON.",
    "As JSON, please.",
    "Answer in JSON.",
    "Return JSON.",
    "Extract the facts as JSON.",
    "Make a record of it.",
)
_LAYOUT_ASKS = ("Fill in {layout}.", "Write it as JSON: {layout}", "Return {layout}")
_LISTS = word_list("people people children persons list items")
_NUMBER_WORDS = {int(digit): word for digit, word in words.NUMBERS.items()}
_LEGS = {"no": 0, "two": 2, "four": 4, "six": 6, "eight": 8, "ten": 10}
_OF_STORIES = {
    "hero": "name",
    "kind": "kind",
    "trait": "trait",
    "place": "place",
    "friend": "friend",
    "colour": "colour",
    "noun": "thing",
    "weather": "weather",
    "time": "time",
    "food": "food",
}
_PHRASES = phrase_list("""
    {who} is {age} years old, {who} lives in {city}, {who} has {count} {colour} {things},
    {who} has {a_colour} {thing}, {who} likes {food}, {who} has {a_pet} named {pet_name},
    {who} has {a_pet}, {who} is in {city}, {who} has {count} {things}, {who} has a friend named
    {friend}, {who} is {a_trait} {kind}, {who} lives {in_place}
""")

_NEVER_TOGETHER = ({"city", "place"}, {"thing", "things"}, {"kind", "pet"})  # they share keys


@dataclass(frozen=True, slots=True)
class Filling:
    """A message that asks for JSON about ``text``, and the object that is the right answer.

    ``told``: the question names the keys, so that the whole object is determined.
    """

    ask: str
    text: str
    value: dict[str, Any]
    told: bool

    @property
    def answer(self) -> str:
        return json.dumps(self.value, ensure_ascii=False)


def a_name(rng: random.Random) -> str:
    return invented_name(rng) if rng.random() < 0.25 else rng.choice((*words.GIRLS, *words.BOYS))


def a_city(rng: random.Random) -> str:
    return invented_name(rng) if rng.random() < 0.15 else rng.choice(list(CAPITALS.values()))


def _drawn(rng: random.Random) -> dict[str, Any]:
    return {
        "name": a_name(rng),
        "age": rng.randint(2, 99) if rng.random() < 0.3 else rng.randint(2, 12),
        "city": a_city(rng),
        "count": rng.randint(2, 99) if rng.random() < 0.2 else rng.randint(2, 9),
        "colour": rng.choice(words.COLOURS),
        "things": rng.choice((*COUNTABLE, *words.TREATS)),
        "thing": rng.choice(words.NOUNS),
        "food": rng.choice(list(words.FOODS)),
        "pet": rng.choice(words.CREATURES),
        "pet_name": a_name(rng),
        "friend": a_name(rng),
        "trait": rng.choice(words.TRAITS),
        "kind": rng.choice((*words.CHILDREN, *words.CREATURES)),
        "place": rng.choice(list(words.PLACES)),
    }


def _shown(rng: random.Random, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the forms that the slots of ``_PHRASES`` show: numbers in digits or in words."""
    shown = {key: str(value) for key, value in facts.items()}
    if rng.random() < 0.2:
        shown["count"] = _NUMBER_WORDS.get(facts["count"], shown["count"])
    shown |= {f"a_{key}": with_article(facts[key]) for key in ("colour", "pet", "trait")}
    return shown | {"in_place": words.PLACES[facts["place"]]}


def _about_a_person(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return one to three phrases about somebody, no two about the same, and their facts."""
    facts = _drawn(rng)
    shown = _shown(rng, facts)
    he = "she" if facts["name"] in words.GIRLS else "he"
    chosen: list[str] = []
    told: set[str] = set()
    for phrase in rng.sample(_PHRASES, rng.choice((2, 3, 4))):
        new = {key for key in facts if f"{{{key}}}" in phrase or f"{{a_{key}}}" in phrase}
        new |= {"place"} if "{in_place}" in phrase else set()
        if not (new & told or any(told & pair and new & pair for pair in _NEVER_TOGETHER)):
            told |= new
            chosen.append(phrase)
    text = ""
    for number, phrase in enumerate(chosen):
        who = facts["name"] if number == 0 or rng.random() < 0.15 else he
        joined = number == 1 and rng.random() < 0.5
        if joined:
            text = text.removesuffix(". ") + " and "
            phrase = phrase.removeprefix("{who} ")
        elif who == he:
            who = he.capitalize()
        text += phrase.format_map(shown | {"who": who}) + ". "
    return text.strip(), {key: facts[key] for key in facts if key in told or key == "name"}


def _about_a_story(rng: random.Random) -> tuple[str, dict[str, Any]]:
    while True:
        story = tell_fragment(rng)
        facts = {_OF_STORIES[key]: story.scene[key] for key in _OF_STORIES if key in story.told}
        if len(facts) > 2:
            return story.text, facts


def _about_an_animal(rng: random.Random) -> tuple[str, dict[str, Any]]:
    tables: dict[str, Mapping[str, Any]] = {
        "sound": SOUNDS_OF,
        "legs": {animal: _LEGS[legs] for animal, legs in LEGS_OF.items()},
        "young": YOUNG_OF,
        "eats": EATS,
        "lives": HOMES_OF,
    }
    animal = rng.choice(list(SOUNDS_OF))
    facts = {key: table[animal] for key, table in tables.items() if animal in table}
    text = rng.choice(("Tell me about {a}.", "Describe {a}.", "What do you know about {a}?"))
    return text.format(a=with_article(animal)), {"animal": animal, **facts}


def _about_a_country(rng: random.Random) -> tuple[str, dict[str, Any]]:
    country, city = rng.choice(list(CAPITALS.items()))
    return f"What is the capital of {country}?", {"country": country, "capital": city}


def _two_people(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return two or three sentences of the same kind, and a list of objects or of names."""
    facts = [_drawn(rng) for _ in range(rng.choice((2, 2, 3)))]
    if rng.random() < 0.4:
        names = [one["name"] for one in facts]
        place = facts[0]["place"]
        text = f"{', '.join(names[:-1])} and {names[-1]} are {words.PLACES[place]}."
        return text, {"names": names, "place": place}
    second = rng.choice(("age", "city", "food"))
    phrase = {"age": "is {age} years old", "city": "lives in {city}", "food": "likes {food}"}
    text = " ".join(f"{f['name']} {phrase[second].format_map(f)}." for f in facts)
    keys = rng.choice(KEYS["name"]), rng.choice(KEYS[second])
    return text, {rng.choice(_LISTS): [{keys[0]: f["name"], keys[1]: f[second]} for f in facts]}


def _named(rng: random.Random, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return some of the facts in some order, each under one of its keys."""
    least = min(2, len(facts))
    chosen = rng.sample(list(facts), rng.randint(least, min(4, len(facts))))
    if rng.random() < 0.6:  # as people write them: the name first
        chosen.sort(key=list(facts).index)
    named: dict[str, Any] = {}
    for fact in chosen:
        named.setdefault(rng.choice(KEYS.get(fact, (fact,))), facts[fact])
    return named


def _layout(value: object) -> str:
    """Return an object with the types of its values in their places."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}": {_layout(item)}' for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{_layout(value[0])}]"
    return "string" if isinstance(value, str) else "integer"


def _key_words(rng: random.Random, keys: list[str]) -> str:
    if rng.random() < 0.2:
        keys = [f'"{key}"' for key in keys]
    if rng.random() < 0.5 and len(keys) > 1:
        return f"{', '.join(keys[:-1])} and {keys[-1]}"
    return ", ".join(keys)


def draw_filling(rng: random.Random, *, held_out: bool = False) -> Filling:
    """Draw a text, a question and its object; the text is in the held-out share, or is not.

    Held out are facts about people, since all others are of tables or of held-out stories.
    """
    makers = (_about_a_person, _about_a_story, _about_an_animal, _about_a_country, _two_people)
    while True:
        make = _about_a_person if held_out else rng.choices(makers, (10, 4, 2, 1, 3))[0]
        text, facts = make(rng)
        if make is not _about_a_person or is_held_out(text) == held_out:
            break
    nested = make is _two_people
    value = facts if nested else _named(rng, facts)
    pick = rng.random()
    if pick < 0.2:
        ask = rng.choice(_LAYOUT_ASKS).format(layout=_layout(value))
    elif pick < 0.65 and not nested:
        ask = rng.choice(_ASKS_WITH_KEYS).format(keys=_key_words(rng, list(value)))
    else:
        ask = rng.choice(_ASKS)
    told = pick < (0.2 if nested else 0.65)
    if rng.random() < 0.25:
        return Filling(f"{ask.rstrip('.')}: {text}", text, value, told)
    return Filling(f"{text} {ask}", text, value, told)


def record_chat(rng: random.Random) -> list[Message]:
    """Return a conversation of one to three objects for training."""
    messages: list[Message] = []
    if rng.random() < 0.4:
        system = rng.choice(JSON_SYSTEMS if rng.random() < 0.7 else NEUTRAL)
        messages.append({"role": "system", "content": system})
    for _ in range(rng.choice((1, 2, 2, 3))):
        filling = draw_filling(rng)
        messages.append({"role": "user", "content": filling.ask})
        messages.append({"role": "assistant", "content": filling.answer})
    return messages
