from __future__ import annotations

import pytest

from tools.tiny.more_plots import PLOTS
from tools.tiny.plot import GENERAL_QUESTIONS, OPENING
from tools.tiny.slots import consistent, read, render, variables

TEMPLATE = "{He} gave {friend_full} {his} {thing} one {weather} {time}."
SCENE = {
    "hero_sex": "f",
    "friend": "Otto",
    "fkind": "owl",
    "colour": "orange",
    "noun": "kite",
    "weather": "windy",
    "time": "morning",
}
TEXT = "She gave Otto the owl her orange kite one windy morning."


def test_render_shows_every_slot_in_its_form() -> None:
    assert render(TEMPLATE, SCENE) == TEXT
    assert render("{a_thing}", SCENE) == "an orange kite"


def test_read_finds_the_scene_again() -> None:
    assert read(TEMPLATE, TEXT, 0, {}) == (len(TEXT), SCENE)


def test_read_starts_where_it_is_told() -> None:
    assert read(TEMPLATE, f"Then. {TEXT} And so on.", 6, {}) == (6 + len(TEXT), SCENE)
    assert read(TEMPLATE, f"Then. {TEXT}", 0, {}) is None


@pytest.mark.parametrize(
    ("variable", "word"),
    [("colour", "red"), ("friend", "Mia"), ("hero_sex", "m"), ("time", "evening")],
)
def test_read_refuses_what_contradicts_the_scene(variable: str, word: str) -> None:
    assert read(TEMPLATE, TEXT, 0, {variable: word}) is None


def test_read_refuses_another_pronoun_or_word() -> None:
    assert read(TEMPLATE, TEXT.replace("her orange", "his orange"), 0, {}) is None
    assert read(TEMPLATE, TEXT.replace("owl", "lamp"), 0, {}) is None


def test_a_scene_must_fit_together() -> None:
    assert consistent({"kind": "girl", "hero_sex": "f", "hero": "Mia", "friend": "Otto"})
    assert not consistent({"kind": "girl", "hero_sex": "m"})
    assert not consistent({"hero": "Mia", "friend": "Mia"})
    assert not consistent({"place": "sea", "place2": "sea"})


def test_every_template_of_every_plot_has_known_slots() -> None:
    templates = list(OPENING.choices)
    for plot in PLOTS:
        templates += [choice for beat in plot.beats for choice in beat.choices]
        templates += plot.topics
        for question in (*GENERAL_QUESTIONS, *plot.questions):
            templates += [*question.asks, question.answer, question.short or ""]
    for template in templates:
        variables(template)  # KeyError names an unknown slot
    with pytest.raises(KeyError, match="nowhere"):
        variables("{nowhere}")
