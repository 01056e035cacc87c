"""Whatever raises while something is done for one call ends that call, typed, and nothing else.

An exception that nobody foresaw is raised at each point where the serving path works for one
request. Streams beside it keep their tokens; the engine is not restarted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from small_sidecar import TEMPLATE, sidecar

from pybatcher import AnyBatcher, Batcher, Client, PybatcherError, SamplingParams
from pybatcher.calls.stream import Reply
from pybatcher.serving import call_reader
from pybatcher.testing import FakeEngine, byte_tokenizer, fake_batcher
from pybatcher.text import ChatTemplate, Detokenizer, StopMatcher, StopTexts, Tokenizer

MARK = "~"
VICTIM = f"a victim {MARK}"
(MARK_ID,) = byte_tokenizer().encode(MARK, add_special_tokens=False)
HONEST = {"max_tokens": 16, "temperature": 1.0, "ignore_eos": True}
IS_VICTIM = ContextVar("is_victim", default=False)
LONG = VICTIM * 200  # is tokenised on another thread


class UnforeseenError(Exception):
    """What no part of the serving path expects."""


def _is_marked(value: object) -> bool:
    """Whether it is, or has in it, what only the victim's call has."""
    if isinstance(value, str):
        return MARK in value
    if isinstance(value, SamplingParams):
        return _is_marked(list(value.stop))
    if isinstance(value, StopTexts):
        return _is_marked(getattr(value, "texts", ()))  # none while it is made
    if isinstance(value, dict):
        return any(map(_is_marked, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_is_marked, value))
    return type(value) is int and value == MARK_ID


def _raise_for_marked(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """The function raises if one of its arguments is the victim's."""
    original = getattr(owner, name)

    def raising(*args: Any, **kwargs: Any) -> Any:
        if any(map(_is_marked, (*args, *kwargs.values()))):
            raise UnforeseenError(name)
        return original(*args, **kwargs)

    patch.setattr(owner, name, raising)


def _raise_for_victims(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """The method raises in objects that were made of the victim's values, or by its task."""
    victims: set[int] = set()
    kept: list[object] = []  # so that no other object gets the id of one
    make, original = owner.__init__, getattr(owner, name)

    def making(self: object, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        if IS_VICTIM.get() or any(map(_is_marked, (*args, *kwargs.values()))):
            victims.add(id(self))
            kept.append(self)

    def raising(self: object, *args: Any, **kwargs: Any) -> Any:
        if id(self) in victims:
            raise UnforeseenError(name)
        return original(self, *args, **kwargs)

    patch.setattr(owner, "__init__", making)
    patch.setattr(owner, name, raising)


def _options(batcher: AnyBatcher) -> dict[str, Any]:
    return {"max_tokens": 5, "ignore_eos": True, "stop": [MARK + "never"]}


async def _generate(batcher: AnyBatcher) -> None:
    await batcher.generate(VICTIM, **_options(batcher))


async def _generate_several(batcher: AnyBatcher) -> None:
    await batcher.generate(LONG, n=3, **_options(batcher))


async def _stream(batcher: AnyBatcher) -> None:
    async for _ in batcher.stream(VICTIM, **_options(batcher)):
        pass


async def _chat(batcher: AnyBatcher) -> None:
    await batcher.chat([{"role": "user", "content": VICTIM}], **_options(batcher))


async def _stream_chat(batcher: AnyBatcher) -> None:
    async for _ in batcher.stream_chat([{"role": "user", "content": LONG}], **_options(batcher)):
        pass


async def _resume(batcher: AnyBatcher) -> None:
    await batcher.generate(VICTIM, output=[65, 66], **_options(batcher))


async def _score(batcher: AnyBatcher) -> None:
    await batcher.score("a prompt", [VICTIM, " b"])


async def _embed(batcher: AnyBatcher) -> None:
    await batcher.embed([VICTIM, "b"])


async def _add_prefix(batcher: AnyBatcher) -> None:
    await batcher.add_prefix(VICTIM)


async def _tokenize(batcher: AnyBatcher) -> None:
    await batcher.tokenize(VICTIM)


async def _detokenize(batcher: AnyBatcher) -> None:
    await batcher.detokenize([65, MARK_ID])


async def _detokenize_many(batcher: AnyBatcher) -> None:
    await batcher.detokenize([65, MARK_ID] * 1000)


Call = Callable[[AnyBatcher], Awaitable[None]]
GENERATING: list[Call] = [_generate, _generate_several, _stream, _chat, _stream_chat, _resume]
CHATS: list[Call] = [_chat, _stream_chat]
STREAMS: list[Call] = [_stream, _stream_chat]
SCORING: list[Call] = [_score, _embed]
TEXTS: list[Call] = [*GENERATING, *SCORING, _add_prefix, _tokenize]
DETOKENIZING: list[Call] = [_detokenize, _detokenize_many]

Breaking = Callable[[pytest.MonkeyPatch], None]


def _point(owner: Any, name: str, how: Any = _raise_for_marked) -> Breaking:
    return lambda patch: how(patch, owner, name)


INSIDE: dict[str, tuple[Breaking, list[Call]]] = {
    "reading of arguments": (_point(call_reader, "merge_params"), GENERATING),
    "tokenising": (_point(Tokenizer, "encode"), TEXTS),
    "rendering of chats": (_point(ChatTemplate, "render"), CHATS),
    "making of a detokenizer": (_point(Detokenizer, "__init__"), GENERATING),
    "detokenising a token": (_point(Detokenizer, "push", _raise_for_victims), GENERATING),
    "detokenising the end": (_point(Detokenizer, "flush", _raise_for_victims), GENERATING),
    "making of a stop matcher": (_point(StopTexts, "__init__"), GENERATING),
    "stop matching": (_point(StopMatcher, "push", _raise_for_victims), GENERATING),
    "end of stop matching": (_point(StopMatcher, "flush", _raise_for_victims), GENERATING),
    "detokenising a list": (_point(Tokenizer, "decode"), DETOKENIZING),
}
DELIVERY: dict[str, tuple[Breaking, list[Call]]] = {
    "delivery of a piece": (_point(Reply, "push", _raise_for_victims), STREAMS),
    "delivery of the end": (_point(Reply, "finish", _raise_for_victims), GENERATING),
    "delivery of an answer": (_point(Reply, "finish", _raise_for_victims), SCORING),
}


def _cases(points: dict[str, tuple[Breaking, list[Call]]]) -> list[Any]:
    return [
        pytest.param(breaking, call, id=f"{point} for {call.__name__[1:]}")
        for point, (breaking, calls) in points.items()
        for call in calls
    ]


async def _honest(batcher: AnyBatcher) -> list[tuple[int, ...]]:
    async def tokens(seed: int) -> tuple[int, ...]:
        pieces = batcher.stream("An honest prompt", seed=seed, **HONEST)
        return tuple([token async for piece in pieces for token in piece.token_ids])

    return await asyncio.gather(*map(tokens, range(3)))


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    """What the honest streams get undisturbed, of every batcher over a fake engine."""

    async def undisturbed() -> list[tuple[int, ...]]:
        async with _serving() as batcher:
            return await _honest(batcher)

    return asyncio.run(undisturbed())


async def _check_contained(
    patch: pytest.MonkeyPatch,
    breaking: Breaking,
    call: Call,
    asked: AnyBatcher,
    batcher: Batcher,
    expected: list[tuple[int, ...]],
) -> None:
    """asked: by the victim and the others. batcher: which serves them, and is looked at."""
    await call(asked)  # as it is, it succeeds
    beside = asyncio.create_task(_honest(asked))
    await asyncio.sleep(0)
    breaking(patch)
    mark = IS_VICTIM.set(True)
    try:
        with pytest.raises(PybatcherError, match=r"UnforeseenError"):
            async with asyncio.timeout(30.0):
                await call(asked)
    finally:
        IS_VICTIM.reset(mark)
    assert await beside == expected
    assert await _honest(asked) == expected
    assert batcher.health().ok
    counts = batcher.statistics()
    assert counts.restarts == 0
    assert counts.running == counts.queued == 0


@asynccontextmanager
async def _serving() -> AsyncIterator[Batcher]:
    engine = FakeEngine(step_delay=0.0005, n_parallel=8, n_ctx=16384)
    async with fake_batcher(engine, chat_template=TEMPLATE, max_prefixes=2) as batcher:
        yield batcher


@pytest.mark.parametrize(("breaking", "call"), _cases(INSIDE | DELIVERY))
async def test_in_process(
    breaking: Breaking,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    expected: list[tuple[int, ...]],
) -> None:
    async with _serving() as batcher:
        await _check_contained(monkeypatch, breaking, call, batcher, batcher, expected)


@pytest.mark.parametrize(("breaking", "call"), _cases(INSIDE))
async def test_over_a_socket(
    breaking: Breaking,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    expected: list[tuple[int, ...]],
) -> None:
    path = tmp_path / "s.sock"
    async with _serving() as batcher, sidecar(path, batcher), Client(path) as client:
        await _check_contained(monkeypatch, breaking, call, client, batcher, expected)
