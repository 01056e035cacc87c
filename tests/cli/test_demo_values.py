"""The demo's objects and calls: of the shipped model, and of models that can do less."""

from __future__ import annotations

import pytest

from pybatcher import Batcher
from pybatcher.cli import demo_values
from pybatcher.cli.demo_values import values_shown
from pybatcher.testing import fake_batcher


async def texts(batcher: Batcher) -> list[str]:
    return [" ".join(line.plain.split()) for line in await values_shown(batcher)]


async def test_the_shipped_model_fills_a_schema_and_calls_functions() -> None:
    async with Batcher() as batcher:
        shown = await texts(batcher)
    assert shown == [
        "Objects, by a JSON schema:",
        "Mia has 3 red apples. {'name': 'Mia', 'count': 3, 'colour': 'red'}",
        "Sam lives in Paris and has 5 green pears. {'name': 'Sam', 'count': 5, 'colour': 'green'}",
        "Functions, called by the model:",
        "What is 12 plus 30? add(a=12, b=30) = 42 12 plus 30 is 42.",
        "What is the weather in Oslo? weather(city='Oslo') = sunny The weather in Oslo is sunny.",
    ]


async def test_a_model_without_chats_shows_none() -> None:
    async with fake_batcher() as batcher:
        assert await texts(batcher) == []


async def test_a_model_that_calls_nothing_is_shown_with_its_text() -> None:
    async with fake_batcher(chat_template="{{ messages[0]['content'] }}") as batcher:
        shown = await texts(batcher)
    assert len(shown) == 6
    assert shown[4].startswith("What is 12 plus 30?")


async def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_values, "find_spec", lambda name: None)
    async with fake_batcher(chat_template="{{ messages[0]['content'] }}") as batcher:
        shown = await texts(batcher)
    assert shown[1] == "for these: pip install 'pybatcher-engine[structured]'"


def test_what_a_model_calls_wrongly_is_told_to_it() -> None:
    assert demo_values._result("add", {"a": 1, "b": 2}) == "3"
    assert demo_values._result("add", {"a": 1}).startswith("error: ")
    assert demo_values._result("subtract", {}).startswith("error: ")
