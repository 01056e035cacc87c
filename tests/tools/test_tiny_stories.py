from __future__ import annotations

import random

import pytest

from tools.tiny.more_plots import PLOTS
from tools.tiny.slots import render, variables
from tools.tiny.stories import LENGTHS, invented_name, is_held_out, read_story, tell

STORIES = [
    tell(random.Random(seed), length=list(LENGTHS)[seed % 3], held_out=seed % 2 == 0)
    for seed in range(300)
]


def test_every_plot_is_told() -> None:
    assert {story.plot.name for story in STORIES} == {plot.name for plot in PLOTS}


def test_a_story_reads_back_as_the_scene_it_was_told_from() -> None:
    for story in STORIES:
        found = read_story(story.text)
        assert found is not None, story.text
        plot, scene = found
        assert plot is story.plot
        assert set(scene) == story.told
        assert scene == {variable: story.scene[variable] for variable in story.told}


def test_the_same_seed_tells_the_same_story() -> None:
    assert tell(random.Random(5)).text == tell(random.Random(5)).text
    assert tell(random.Random(5)).text != tell(random.Random(6)).text


def test_short_stories_are_shorter_than_long_ones() -> None:
    short = [tell(random.Random(seed), length="short") for seed in range(50)]
    long = [tell(random.Random(seed), length="long") for seed in range(50)]
    assert max(len(s.text) for s in short) < sum(len(s.text) for s in long) / len(long)


def test_held_out_scenes_are_never_drawn_for_training() -> None:
    for index, story in enumerate(STORIES):
        scene = story.scene
        held_out = is_held_out(scene["hero"], scene["place"], scene["noun"])
        assert held_out == (index % 2 == 0)


def test_about_one_combination_in_eight_is_held_out() -> None:
    n = sum(is_held_out("Mia", "river", str(i)) for i in range(4000))
    assert 400 < n < 600


def _broken(text: str) -> dict[str, str]:
    sentences = text.split(". ")
    return {
        "no opening": ". ".join(sentences[1:]),
        "no end": ". ".join(sentences[:-3]) + ".",
        "cut word": text[:-3],
        "other order": ". ".join([sentences[0], *sentences[1:][::-1]]),
        "twice": f"{text} {text}",
        "more after it": f"{text} The",
        "small letter": text[0].lower() + text[1:],
    }


@pytest.mark.parametrize("flaw", sorted(_broken("a. b")))
def test_a_broken_story_is_no_story(flaw: str) -> None:
    for story in STORIES[:40]:
        assert read_story(_broken(story.text)[flaw]) is None, flaw


def test_a_changed_fact_is_noticed() -> None:
    noticed = 0
    for story in STORIES:
        noun, hero = story.scene["noun"], story.scene["hero"]
        if story.text.count(f" {noun} ") > 1:
            noticed += 1
            wrong = "drum" if noun != "drum" else "kite"
            assert read_story(story.text.replace(f" {noun} ", f" {wrong} ", 1)) is None
        if story.text.count(f" {hero} ") > 1:
            assert read_story(story.text.replace(f" {hero} ", " Zoltan ", 1)) is None
    assert noticed > 50


def test_a_story_answers_its_questions_with_its_own_facts() -> None:
    for story in STORIES:
        questions = story.questions()
        assert len(questions) >= 4
        for question in questions:
            assert variables(question.answer) <= story.told
            answer = render(question.answer, story.scene)
            assert answer.endswith(".")
            assert "{" not in answer
            if question.short is not None:
                short = render(question.short, story.scene)
                assert short[0].isupper()
                assert len(short.split()) == 1


def test_invented_names_read_as_names() -> None:
    for seed in range(100):
        name = invented_name(random.Random(seed))
        assert name.isalpha()
        assert name == name.capitalize()
