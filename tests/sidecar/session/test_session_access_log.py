"""The access log of a connection: one line for each call, at its end, with how it ended."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from batcher_helpers import until
from session_helpers import ServiceOf, connected

from pybatcher.access_log import LOGGER, AccessLine
from pybatcher.testing import FakeEngine, fake_batcher

SHORT = {"max_tokens": 5, "ignore_eos": True}
LONG = {"max_tokens": 3000, "ignore_eos": True}
HOSTILE = "x\n\x1b[2J status=ok " + "y" * 10_000


class Lines(logging.Handler):
    """Collects the values of the lines."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.msg, AccessLine)
        self.fields.append(record.msg.fields())

    def take(self) -> list[tuple[Any, ...]]:
        """Return route, status, outcome, tokens and id of the lines since the last call."""
        found, self.fields = self.fields, []
        names = ("route", "status", "outcome", "prompt_tokens", "completion_tokens", "request_id")
        return [tuple(one[name] for name in names) for one in found]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    yield handler
    LOGGER.setLevel(logging.NOTSET)
    LOGGER.removeHandler(handler)


async def test_calls_that_finish(lines: Lines) -> None:
    async with (
        fake_batcher() as batcher,
        connected(ServiceOf(batcher), logs_access=True) as (_, peer),
    ):
        await peer.ask("generate", "Hi", SHORT)
        (line,) = lines.fields
        assert (line["protocol"], line["operation"], line["uid"]) == (
            "socket",
            "call",
            os.geteuid(),
        )
        assert 0 <= line["ttft"] <= line["total"] < 60
        assert lines.take() == [("generate", "ok", "finished", 3, 5, 1)]
        await peer.answer(peer.request("generate", "Hi", {**SHORT, "stream": True, "id": "mine"}))
        assert lines.take() == [("generate", "ok", "finished", 3, 5, "mine")]
        await peer.ask("embed", ["Hi", "Hi"])
        await peer.ask("tokenize", "Hi")
        await peer.ask("health")
        assert [line[:5] for line in lines.take()] == [
            ("embed", "ok", "finished", 6, None),
            ("tokenize", "ok", "finished", None, None),
            ("health", "ok", "finished", None, None),
        ]


async def test_calls_that_are_refused(lines: Lines) -> None:
    async with (
        fake_batcher() as batcher,
        connected(ServiceOf(batcher), logs_access=True) as (_, peer),
    ):
        await peer.answer(peer.request("generate", "", SHORT))
        await peer.answer(peer.request("generate", "Hi", {"max_tokens": "many"}))
        await peer.answer(peer.request(HOSTILE))
        *refused, unknown = lines.take()
        assert [line[:3] for line in refused] == [("generate", "invalid_request", "error")] * 2
        assert unknown[1:3] == ("unknown_method", "error")
        assert unknown[0].startswith("x%0A%1B[2J%20status=ok%20yyy")
        assert len(unknown[0]) < 400


async def test_calls_that_do_not_finish(lines: Lines) -> None:
    engine = FakeEngine(n_ctx=4096)
    engine.before_step = lambda _: time.sleep(0.01)
    async with fake_batcher(engine) as batcher:
        async with connected(ServiceOf(batcher), logs_access=True) as (_, peer):
            for id in ("a", "b"):
                peer.request("generate", "Hi", {**LONG, "stream": True, "id": id})
            while (await peer.frame())[1] != "delta":
                pass
            await peer.answer(peer.request("generate", "Hi", {**LONG, "id": "a"}))
            assert [line[:3] for line in lines.take()] == [("generate", "duplicate_id", "error")]
            await peer.answer(peer.request("cancel", "a"))
            ((*head, prompt, n_tokens, id),) = lines.take()
            assert (head, prompt, id) == (["generate", "cancelled", "cancelled"], None, "a")
            assert n_tokens > 0
        await until(lambda: bool(lines.fields))
        ((*head, _, _, id),) = lines.take()
        assert (head, id) == (["generate", "cancelled", "disconnected"], "b")


async def test_a_session_of_a_worker_logs_nothing(lines: Lines) -> None:
    async with fake_batcher() as batcher, connected(ServiceOf(batcher)) as (_, peer):
        await peer.ask("generate", "Hi", SHORT)
        await peer.answer(peer.request("nothing"))
    assert lines.fields == []
