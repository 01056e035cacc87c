"""The interface that a batcher in this process and the client of a sidecar have in common.

That the types agree is for mypy, in `make check`; here is what it does not see.
"""

from __future__ import annotations

import inspect
from typing import TypeVar

import pytest

from pybatcher import (
    AnyBatcher,
    Batcher,
    BlockingBatcher,
    BlockingClient,
    Client,
    ThreadsafeBatcher,
)
from pybatcher.testing import fake_batcher

_T = TypeVar("_T")

CALLS = {
    "act",
    "generate",
    "map",
    "trim",
    "stream",
    "chat",
    "stream_chat",
    "score",
    "embed",
    "add_prefix",
    "remove_prefix",
    "tokenize",
    "detokenize",
    "token_bytes",
    "model_info",
}
LIFE = {"start", "close", "__aenter__", "__aexit__"}
MAY_BE_AWAITED = {"statistics", "health", "prefixes"}
QUESTIONS = {"attach", "model_name"} | MAY_BE_AWAITED


async def use(batcher: AnyBatcher) -> tuple[str, int]:
    """As an application does that does not care which of them it has."""
    completion = await batcher.generate("Once upon a time", max_tokens=4)
    return str(completion), (await batcher.statistics()).completed


def test_it_asks_for_what_users_call_and_nothing_else() -> None:
    public = {name for name in dir(AnyBatcher) if not name.startswith("_")}
    assert public == (CALLS | LIFE | QUESTIONS) - {"__aenter__", "__aexit__"}


@pytest.mark.parametrize("one", [Batcher, Client])
@pytest.mark.parametrize("name", sorted(CALLS | LIFE | QUESTIONS))
def test_both_have_all_of_it_with_the_same_arguments(one: type, name: str) -> None:
    theirs, ours = getattr(AnyBatcher, name), getattr(one, name)
    if isinstance(theirs, property):
        assert isinstance(ours, property)
        return
    if name not in MAY_BE_AWAITED:
        assert inspect.iscoroutinefunction(theirs) == inspect.iscoroutinefunction(ours)
    taken = [
        [(one.name, one.kind, one.default) for one in inspect.signature(method).parameters.values()]
        for method in (theirs, ours)
    ]
    assert taken[0] == taken[1]


@pytest.mark.parametrize("other_way_in", [BlockingBatcher, BlockingClient, ThreadsafeBatcher])
def test_every_call_is_there_for_threads_too(other_way_in: type) -> None:
    assert set(dir(other_way_in)) >= CALLS | {"prefixes"}


async def test_code_that_takes_either_runs_on_a_batcher() -> None:
    async with fake_batcher() as batcher:
        text, completed = await use(batcher)
        assert text == str(await batcher.generate("Once upon a time", max_tokens=4))
        assert completed == 1
