"""Short exchanges in which words become JSON: lists, and pairs of a key and a value.

A word between quotes is of other tokens than behind a blank (``"red"``, not `` red``), so that the
model has to learn how each of its words is spelt there. Lists teach that with the fewest tokens.
"""

from __future__ import annotations

import json
import random
from typing import Any

from tools.tiny import words
from tools.tiny.conversations import Message
from tools.tiny.fact_tables import COUNTABLE
from tools.tiny.records import KEYS, a_city, a_name

_LIST_ASKS = (
    "Write a list: {x}.",
    "As a JSON list: {x}",
    "JSON list: {x}",
    "{x}. As JSON, please.",
)
_PAIR_ASKS = ("Write it as JSON: {x}.", "As JSON: {x}", "{x}. Write it as JSON.", "JSON: {x}")
_OTHER_WORDS = {
    "kind": (*words.CHILDREN, *words.CREATURES),
    "trait": words.TRAITS,
    "place": tuple(words.PLACES),
    "colour": words.COLOURS,
    "thing": words.NOUNS,
    "things": (*COUNTABLE, *words.TREATS),
    "food": tuple(words.FOODS),
    "pet": words.CREATURES,
    "weather": words.WEATHERS,
    "time": words.TIMES,
}
_KINDS = ("name", "name", "name", "friend", "city", "city", "age", "count", *_OTHER_WORDS)


def _value(rng: random.Random, kind: str) -> str | int:
    if kind in ("name", "friend"):
        return a_name(rng)
    if kind == "city":
        return a_city(rng)
    if kind in ("age", "count"):
        return rng.randint(0, rng.choice((12, 99, 999)))
    return rng.choice(_OTHER_WORDS[kind])


def _list(rng: random.Random) -> tuple[str, list[Any]]:
    values = [_value(rng, rng.choice(_KINDS)) for _ in range(rng.randint(3, 7))]
    said = [str(value) for value in values]
    if rng.random() < 0.5:
        return f"{', '.join(said[:-1])} and {said[-1]}", values
    return ", ".join(said), values


def _pairs(rng: random.Random) -> tuple[str, dict[str, Any]]:
    values = {rng.choice(KEYS[kind]): _value(rng, kind) for kind in rng.sample(_KINDS, 4)}
    mark = rng.choice((": ", " ", " = ", " is "))
    return ", ".join(f"{key}{mark}{value}" for key, value in values.items()), values


def json_drill(rng: random.Random) -> list[Message]:
    """Return a list or an object to write as JSON, and the JSON."""
    value: object
    if rng.random() < 0.6:
        said, value = _list(rng)
        ask = rng.choice(_LIST_ASKS)
    else:
        said, value = _pairs(rng)
        ask = rng.choice(_PAIR_ASKS)
    return [
        {"role": "user", "content": ask.format(x=said)},
        {"role": "assistant", "content": json.dumps(value, ensure_ascii=False)},
    ]
