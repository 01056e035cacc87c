"""Stories: random scenes that are told along a plot, asked about, and read back."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tools.tiny import words
from tools.tiny.more_plots import PLOTS
from tools.tiny.plot import GENERAL_QUESTIONS, OPENING, Beat, Plot, Question
from tools.tiny.slots import Scene, consistent, read, render, variables

LENGTHS = {"short": 0.0, "medium": 0.5, "long": 1.0}  # the share of optional beats, by length
_HELD_OUT_ONE_IN = 8


@dataclass(frozen=True, slots=True)
class Story:
    plot: Plot
    scene: Scene
    told: frozenset[str]  # the variables that the text shows
    text: str

    def questions(self) -> list[Question]:
        """Return the questions that this story answers."""
        every = (*GENERAL_QUESTIONS, *self.plot.questions)
        return [q for q in every if variables(q.answer) <= self.told]


def is_held_out(*facts: str) -> bool:
    """Return whether a combination of facts is held out of training (one in eight, by checksum)."""
    return zlib.crc32("|".join(facts).encode()) % _HELD_OUT_ONE_IN == 0


def invented_name(rng: random.Random) -> str:
    syllables = rng.choices(words.SYLLABLES, k=rng.choice((2, 2, 3)))
    ending = rng.choice(words.NAME_ENDINGS) if rng.random() < 0.5 else ""
    return ("".join(syllables) + ending).capitalize()


def _name(rng: random.Random, sex: str) -> str:
    if rng.random() < 0.08:
        return invented_name(rng)
    return rng.choice(words.GIRLS if sex == "f" else words.BOYS)


def _two(rng: random.Random, values: list[str]) -> tuple[str, str]:
    first, second = rng.sample(values, 2)
    return first, second


def _draw(rng: random.Random) -> Scene:
    kind = rng.choice(words.CHILDREN if rng.random() < 0.3 else words.CREATURES)
    sex = {"girl": "f", "boy": "m"}.get(kind) or rng.choice("mf")
    friend_sex = rng.choice("mf")
    hero, friend = _name(rng, sex), _name(rng, friend_sex)
    while friend == hero:
        friend = _name(rng, friend_sex)
    place, place2 = _two(rng, list(words.PLACES))
    search, search2 = _two(rng, list(words.SEARCHED))
    landmark, landmark2 = _two(rng, list(words.LANDMARKS))
    return {
        "hero": hero,
        "hero_sex": sex,
        "kind": kind,
        "trait": rng.choice(words.TRAITS),
        "friend": friend,
        "friend_sex": friend_sex,
        "fkind": rng.choice([k for k in words.CREATURES if k != kind]),
        "place": place,
        "place2": place2,
        "search": search,
        "search2": search2,
        "landmark": landmark,
        "landmark2": landmark2,
        "colour": rng.choice(words.COLOURS),
        "weather": rng.choice(words.WEATHERS),
        "time": rng.choice(words.TIMES),
        "food": rng.choice(list(words.FOODS)),
        "spot": rng.choice(list(words.SPOTS)),
        "baby": rng.choice(words.BABIES),
        "skill": rng.choice(list(words.SKILLS)),
        "number": rng.choice(list(words.NUMBERS)),
        "flowers": rng.choice(words.FLOWERS),
        "building": rng.choice(list(words.BUILDINGS)),
        "sound": rng.choice(list(words.SOUNDS)),
        "treats": rng.choice(words.TREATS),
    }


def draw_scene(rng: random.Random, plot: Plot, *, held_out: bool) -> Scene:
    """Draw a scene for a plot whose (hero, place, noun) is in the held-out share, or is not."""
    while True:
        scene = _draw(rng)
        scene["noun"] = rng.choice(plot.nouns or words.NOUNS)
        if is_held_out(scene["hero"], scene["place"], scene["noun"]) == held_out:
            return scene


def tell(rng: random.Random, *, length: str = "medium", held_out: bool = False) -> Story:
    """Return one story. ``length``: a key of ``LENGTHS``."""
    plot = rng.choice(PLOTS)
    scene = draw_scene(rng, plot, held_out=held_out)
    share = LENGTHS[length]
    beats = [b for b in (OPENING, *plot.beats) if b.needed or rng.random() < share]
    return _told(rng, plot, scene, beats)


def tell_fragment(rng: random.Random) -> Story:
    """Return two or three sentences of a story: the opening and one other, or neighbours."""
    plot = rng.choice(PLOTS)
    scene = draw_scene(rng, plot, held_out=False)
    beats = (OPENING, *plot.beats)
    if rng.random() < 0.5:
        return _told(rng, plot, scene, [OPENING, rng.choice(plot.beats)])
    start = rng.randrange(len(beats) - 2)
    return _told(rng, plot, scene, beats[start : start + rng.choice((2, 2, 3))])


def _told(rng: random.Random, plot: Plot, scene: Scene, beats: Sequence[Beat]) -> Story:
    templates = [rng.choice(beat.choices) for beat in beats]
    told = frozenset[str]().union(*(variables(template) for template in templates))
    return Story(plot, scene, told, " ".join(render(t, scene) for t in templates))


def _readings(beats: tuple[Beat, ...], text: str, start: int, scene: Scene) -> Iterator[Scene]:
    """Yield every scene in which ``text[start:]`` is these beats, with or without optional ones."""
    if not beats:
        if start == len(text):
            yield scene
        return
    beat, rest = beats[0], beats[1:]
    for template in beat.choices:
        found = read(template, text, start, scene)
        if found is None:
            continue
        end, learnt = found
        if text[end : end + 1] == " ":
            yield from _readings(rest, text, end + 1, learnt)
        elif end == len(text) and not any(b.needed for b in rest):
            yield learnt
    if not beat.needed:
        yield from _readings(rest, text, start, scene)


def read_story(text: str) -> tuple[Plot, Scene] | None:
    """Return the plot and the scene of a story; None if the text is not one story of this grammar.

    A text is a story when it is the opening and then every needed beat of one plot in order, with
    each name, pronoun, object and place the same from beginning to end.
    """
    for plot in PLOTS:
        for scene in _readings((OPENING, *plot.beats), text.strip(), 0, {}):
            if consistent(scene):
                return plot, scene
    return None


def read_sentences(text: str) -> bool:
    """Return whether ``text`` is an opening and consistent sentences of the plots."""
    text = text.strip()
    everything = [t for plot in PLOTS for beat in plot.beats for t in beat.choices]
    ends = {found[0] for t in OPENING.choices if (found := read(t, text, 0, {})) is not None}
    seen: set[int] = set()
    while ends:
        end = ends.pop()
        if end == len(text):
            return True
        if end in seen or text[end] != " ":
            continue
        seen.add(end)
        found_here = (read(t, text, end + 1, {}) for t in everything)
        ends |= {found[0] for found in found_here if found is not None}
    return False
