"""Sentence templates that can be written and read back.

A template is text with slots: ``"One {weather} {time}, {he} went out."``. A *scene* maps variables
to canonical words (``{"weather": "windy", "hero_sex": "f"}``); a slot says which variable it shows
and in what form, so several slots can show one variable (``he``, ``him`` and ``his`` all show
``hero_sex``). The same tables turn a template into a pattern that finds the scene in a text, which
is how the test asks whether what the model wrote is a sentence of this grammar, with every pronoun
and every object the same from beginning to end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from tools.tiny import words
from tools.tiny.words import with_article

Scene = dict[str, str]


@dataclass(frozen=True, slots=True)
class Slot:
    """The forms of one variable in a sentence; ``forms`` is None for names, which are any word."""

    variable: str
    forms: Mapping[str, str] | None

    def show(self, scene: Mapping[str, str]) -> str:
        word = scene[self.variable]
        return word if self.forms is None else self.forms[word]


def _same(values: Iterable[str]) -> dict[str, str]:
    return {value: value for value in values}


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _with_capitals(name: str, slot: Slot) -> dict[str, Slot]:
    """Return the slot, and its capitalised form under the capitalised name."""
    if slot.forms is None:
        return {name: slot}
    capitals = {word: _capital(form) for word, form in slot.forms.items()}
    return {name: slot, _capital(name): Slot(slot.variable, capitals)}


def _pronouns(prefix: str, variable: str) -> dict[str, Slot]:
    forms = {"he": ("he", "she"), "him": ("him", "her"), "his": ("his", "her")}
    slots: dict[str, Slot] = {}
    for name, (male, female) in forms.items():
        slots |= _with_capitals(prefix + name, Slot(variable, {"m": male, "f": female}))
    return slots


def _nouns(name: str, variable: str, values: Iterable[str]) -> dict[str, Slot]:
    """Return ``{name}`` and ``{a_name}``, each also capitalised."""
    plain = _same(values)
    articled = {word: with_article(word) for word in plain}
    return _with_capitals(name, Slot(variable, plain)) | _with_capitals(
        f"a_{name}", Slot(variable, articled)
    )


def _all_slots() -> dict[str, Slot]:
    kinds = (*words.CHILDREN, *words.CREATURES)
    slots = {"hero": Slot("hero", None), "friend": Slot("friend", None)}
    slots |= _pronouns("", "hero_sex") | _pronouns("f_", "friend_sex")
    slots |= _nouns("kind", "kind", kinds) | _nouns("fkind", "fkind", words.CREATURES)
    slots |= _nouns("trait", "trait", words.TRAITS)
    slots |= _nouns("colour", "colour", words.COLOURS) | _nouns("noun", "noun", words.NOUNS)
    slots |= _nouns("baby", "baby", words.BABIES)
    slots |= _with_capitals("in_place", Slot("place", words.PLACES))
    slots |= _with_capitals("place", Slot("place", _same(words.PLACES)))
    slots |= {"in_place2": Slot("place2", words.PLACES)}
    slots |= _with_capitals("place2", Slot("place2", _same(words.PLACES)))
    slots |= _with_capitals("weather", Slot("weather", _same(words.WEATHERS)))
    slots |= _with_capitals("time", Slot("time", _same(words.TIMES)))
    slots |= _with_capitals("food", Slot("food", words.FOODS))
    slots |= {"Food_word": Slot("food", {w: _capital(w) for w in words.FOODS})}
    slots |= {"spot": Slot("spot", words.SPOTS)}
    slots |= {"search": Slot("search", _same(words.SEARCHED))}
    slots |= {"search2": Slot("search2", _same(words.SEARCHED))}
    slots |= {"skill": Slot("skill", _same(words.SKILLS)), "mishap": Slot("skill", words.SKILLS)}
    slots |= _with_capitals("number", Slot("number", words.NUMBERS))
    slots |= _with_capitals("flowers", Slot("flowers", _same(words.FLOWERS)))
    slots |= {"a_building": Slot("building", words.BUILDINGS)}
    slots |= _with_capitals("building", Slot("building", _same(words.BUILDINGS)))
    slots |= _with_capitals("sound", Slot("sound", words.SOUNDS))
    slots |= {"landmark": Slot("landmark", words.LANDMARKS)}
    slots |= {"landmark2": Slot("landmark2", words.LANDMARKS)}
    slots |= _with_capitals("treats", Slot("treats", _same(words.TREATS)))
    return slots


SLOTS = _all_slots()
_MACROS = {
    "{thing}": "{colour} {noun}",
    "{a_thing}": "{a_colour} {noun}",
    "{friend_full}": "{friend} the {fkind}",
}
_SLOT = re.compile(r"\{(\w+)\}")
_NAME = "[A-Z][a-z]+"


@cache
def _expand(template: str) -> str:
    for macro, text in _MACROS.items():
        template = template.replace(macro, text)
    return template


@cache
def variables(template: str) -> frozenset[str]:
    """Return the variables that the template shows. Raises KeyError on an unknown slot."""
    return frozenset(SLOTS[name].variable for name in _SLOT.findall(_expand(template)))


def render(template: str, scene: Mapping[str, str]) -> str:
    """Return the template with every slot filled from the scene."""
    return _SLOT.sub(lambda match: SLOTS[match[1]].show(scene), _expand(template))


@dataclass(frozen=True, slots=True)
class _Pattern:
    regex: re.Pattern[str]
    slots: tuple[Slot, ...]  # one for each group


@cache
def _compile(template: str) -> _Pattern:
    parts, slots = [], []
    for index, part in enumerate(_SLOT.split(_expand(template))):
        if index % 2 == 0:
            parts.append(re.escape(part))
            continue
        slot = SLOTS[part]
        slots.append(slot)
        forms = [_NAME] if slot.forms is None else sorted(set(slot.forms.values()), key=len)[::-1]
        parts.append("(" + "|".join(f if slot.forms is None else re.escape(f) for f in forms) + ")")
    return _Pattern(re.compile("".join(parts)), tuple(slots))


def read(
    template: str, text: str, start: int, scene: Mapping[str, str]
) -> tuple[int, Scene] | None:
    """Match ``template`` at ``text[start:]`` so that it agrees with the scene.

    Returns the end of the match and the scene with the facts read; None when the text is not this
    template, or contradicts the scene (another name, pronoun, colour, place ...).
    """
    pattern = _compile(template)
    match = pattern.regex.match(text, start)
    if match is None:
        return None
    found = dict(scene)
    for slot, form in zip(pattern.slots, match.groups(), strict=True):
        if slot.forms is None:
            word = form
        else:
            word = next(word for word, shown in slot.forms.items() if shown == form)
        if found.setdefault(slot.variable, word) != word:
            return None
    return match.end(), found


_DIFFERENT = (
    ("hero", "friend"),
    ("kind", "fkind"),
    ("place", "place2"),
    ("landmark", "landmark2"),
    ("search", "search2"),
)


def consistent(scene: Mapping[str, str]) -> bool:
    """Return whether the facts of a scene fit together: a girl is "she", a friend is another."""
    sex_of_child = {"girl": "f", "boy": "m"}.get(scene.get("kind", ""))
    if sex_of_child is not None and scene.get("hero_sex", sex_of_child) != sex_of_child:
        return False
    return all(one not in scene or scene[one] != scene.get(other) for one, other in _DIFFERENT)


def words_of(template: str) -> Iterator[str]:
    """Return every slot name of a template, in order (for tests of the tables)."""
    yield from _SLOT.findall(_expand(template))
