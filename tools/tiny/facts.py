"""Small questions with known answers: sums, animals, colours, days, opposites and the like."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tools.tiny import words
from tools.tiny.fact_tables import (
    BY_SIZE,
    CAPITALS,
    COLOUR_OF,
    COUNTABLE,
    COUNTED,
    DAYS,
    EATS,
    HOMES_OF,
    LEGS_OF,
    LISTS,
    MIXED,
    MONTHS,
    OPPOSITES,
    SEASONS,
    SIDES,
    SOUNDS_OF,
    YOUNG_OF,
)
from tools.tiny.stories import invented_name, is_held_out
from tools.tiny.words import with_article


@dataclass(frozen=True, slots=True)
class Fact:
    """A question, its answer as a sentence, and in one word (None where that makes no sense)."""

    ask: str
    answer: str
    short: str | None = None


def _cap(text: str) -> str:
    return text[0].upper() + text[1:]


def _word(text: str) -> str:
    return f"{_cap(text)}."


def _sum(rng: random.Random) -> Fact:
    sign = rng.choice(("plus", "plus", "minus", "times"))
    if sign == "plus":
        a, b = rng.randint(0, 12), rng.randint(0, 12)
        result = a + b
    elif sign == "minus":
        a = rng.randint(0, 14)
        b = rng.randint(0, a)
        result = a - b
    else:
        a, b = rng.randint(1, 6), rng.randint(1, 10)
        result = a * b
    symbol = {"plus": "+", "minus": "-", "times": "*"}[sign]
    ask = rng.choice(
        (
            f"What is {a} {sign} {b}?",
            f"What is {a} {sign} {b}?",
            f"How much is {a} {sign} {b}?",
            f"{a} {symbol} {b} = ?",
            f"What is {a} {symbol} {b}?",
        )
    )
    return Fact(ask, f"{a} {sign} {b} is {result}.", f"{result}.")


def _word_problem(rng: random.Random) -> Fact:
    name = rng.choice((*words.GIRLS, *words.BOYS))
    things = rng.choice(COUNTABLE)
    a, b = rng.randint(2, 10), rng.randint(2, 8)
    if rng.random() < 0.5 and b < a:
        now, how = a - b, f"gives away {b}"
    else:
        now, how = a + b, f"gets {b} more"
    ask = f"{name} has {a} {things} and {how}. How many {things} does {name} have now?"
    noun = things if now != 1 else {"cookies": "cookie"}.get(things, things.removesuffix("s"))
    return Fact(ask, f"{name} has {now} {noun} now.", f"{now}.")


def _bigger_number(rng: random.Random) -> Fact:
    a, b = rng.sample(range(100), 2)
    big = max(a, b)
    return Fact(f"Which is bigger, {a} or {b}?", f"{big} is bigger than {min(a, b)}.", f"{big}.")


def _bigger_animal(rng: random.Random) -> Fact:
    i, j = rng.sample(range(len(BY_SIZE)), 2)
    large, small = with_article(BY_SIZE[max(i, j)]), with_article(BY_SIZE[min(i, j)])
    a, b = with_article(BY_SIZE[i]), with_article(BY_SIZE[j])
    if rng.random() < 0.5:
        return Fact(
            f"Which is bigger, {a} or {b}?",
            _word(f"{large} is bigger than {small}"),
            _word(BY_SIZE[max(i, j)]),
        )
    return Fact(
        f"Which is smaller, {a} or {b}?",
        _word(f"{small} is smaller than {large}"),
        _word(BY_SIZE[min(i, j)]),
    )


def _animal(rng: random.Random) -> Fact:
    pick = rng.randrange(5)
    table = (SOUNDS_OF, YOUNG_OF, HOMES_OF, LEGS_OF, EATS)[pick]
    animal = rng.choice(list(table))
    word, an = table[animal], with_article(animal)
    if pick == 0:
        return Fact(
            rng.choice((f"What does {an} say?", f"What sound does {an} make?")),
            _word(f"{an} says {word}"),
            _word(word),
        )
    if pick == 1:
        ask = rng.choice(
            (f"What is a young {animal} called?", f"What do you call a baby {animal}?")
        )
        return Fact(ask, f"A young {animal} is called {with_article(word)}.", _word(word))
    if pick == 2:
        return Fact(f"Where does {an} live?", _word(f"{an} lives {word}"), _word(word.split()[-1]))
    if pick == 3:
        return Fact(
            f"How many legs does {an} have?",
            _word(f"{an} has {word} legs"),
            _word("none" if word == "no" else word),
        )
    return Fact(
        rng.choice((f"What does {an} eat?", f"What does {an} like to eat?")),
        _word(f"{an} likes to eat {word}"),
        _word(word),
    )


def _colour(rng: random.Random) -> Fact:
    if rng.random() < 0.3:
        (a, b), mixed = rng.choice(list(MIXED.items()))
        a, b = rng.sample((a, b), 2)
        ask = rng.choice(
            (f"What do you get when you mix {a} and {b}?", f"What colour do {a} and {b} make?")
        )
        return Fact(ask, f"{_cap(a)} and {b} make {mixed}.", _word(mixed))
    thing, colour = rng.choice(list(COLOUR_OF.items()))
    return Fact(
        rng.choice((f"What colour is {thing}?", f"What color is {thing}?")),
        _word(f"{thing} is {colour}"),
        _word(colour),
    )


def _opposite(rng: random.Random) -> Fact:
    a, b = rng.choice(list(OPPOSITES.items()))
    return Fact(f"What is the opposite of {a}?", f"The opposite of {a} is {b}.", _word(b))


def _calendar(rng: random.Random) -> Fact:
    ring, what = rng.choice(((DAYS, "day"), (MONTHS, "month"), (SEASONS, "season")))
    here, step = rng.randrange(len(ring)), rng.choice((1, -1))
    there = ring[(here + step) % len(ring)]
    side = "after" if step == 1 else "before"
    ask = rng.choice(
        (f"What {what} comes {side} {ring[here]}?", f"Which {what} comes {side} {ring[here]}?")
    )
    return Fact(ask, f"{_cap(there)} comes {side} {ring[here]}.", _word(there))


def _capital_city(rng: random.Random) -> Fact:
    country, city = rng.choice(list(CAPITALS.items()))
    return Fact(
        f"What is the capital of {country}?", f"The capital of {country} is {city}.", f"{city}."
    )


def _sides(rng: random.Random) -> Fact:
    shape, sides = rng.choice(list(SIDES.items()))
    return Fact(
        f"How many sides does a {shape} have?",
        f"A {shape} has {sides} sides.",
        _word("none" if sides == "no" else sides),
    )


def _count(rng: random.Random) -> Fact:
    to = rng.randint(3, 10)
    up = COUNTED[:to]
    if rng.random() < 0.3:
        return Fact(f"Count down from {COUNTED[to - 1]}.", _word(", ".join(up[::-1])))
    return Fact(
        rng.choice(
            (
                f"Count to {COUNTED[to - 1]}.",
                f"Count to {to}.",
                f"Can you count to {COUNTED[to - 1]}?",
            )
        ),
        _word(", ".join(up)),
    )


def _list(rng: random.Random) -> Fact:
    """Return the same few examples in the same order, so that a greedy answer is one clean list."""
    what, every = rng.choice(list(LISTS.items()))
    n = rng.randint(2, 5)
    named = every[:n]
    text = f"{', '.join(named[:-1])} and {named[-1]}"
    return Fact(
        f"Name {COUNTED[n - 1]} {what}.", f"{COUNTED[n - 1].capitalize()} {what} are {text}."
    )


def _spelling(rng: random.Random) -> Fact:
    name = rng.choice((*words.GIRLS, *words.BOYS)) if rng.random() < 0.7 else invented_name(rng)
    return Fact(f"My name is {name}. What is my name?", f"Your name is {name}.", f"{name}.")


_Maker = Callable[[random.Random], Fact]
_MAKERS: tuple[tuple[_Maker, int], ...] = (
    (_sum, 10),
    (_word_problem, 4),
    (_bigger_number, 1),
    (_bigger_animal, 3),
    (_animal, 7),
    (_colour, 4),
    (_opposite, 3),
    (_calendar, 3),
    (_capital_city, 3),
    (_sides, 1),
    (_count, 2),
    (_list, 2),
    (_spelling, 2),
)


def draw_fact(rng: random.Random, *, held_out: bool = False) -> Fact:
    """Draw a question and its answer.

    Held out are word problems, by their exact numbers, name and things: the one kind of question
    here that has new combinations.
    """
    if held_out:
        while True:
            fact = _word_problem(rng)
            if is_held_out(fact.ask):
                return fact
    makers, weights = zip(*_MAKERS, strict=True)
    while True:
        make: _Maker = rng.choices(makers, weights)[0]
        fact = make(rng)
        if make is not _word_problem or not is_held_out(fact.ask):
            return fact
