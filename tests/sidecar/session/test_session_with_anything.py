"""Whatever a client asks, each Request has one Response, and the next client is served."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session_helpers import ServiceOf, connected
from wire_values import ANYTHING

from pybatcher.sidecar.protocol.codecs import METHODS as QUESTIONS
from pybatcher.testing import fake_batcher

METHODS = st.sampled_from(["generate", "chat", "cancel", "hello", *QUESTIONS]) | st.text(max_size=5)
OPTS = st.dictionaries(
    st.sampled_from(["id", "stream", "window", "timeout_ms", "max_tokens", "stop", "n", "output"]),
    ANYTHING | st.integers(0, 3) | st.booleans(),
    max_size=4,
)
PARAMS = st.lists(ANYTHING | st.just("hi") | OPTS, max_size=3)
NOTIFICATIONS = st.sampled_from(["ack", "cancel", "sing"])
FRAMES = st.lists(
    st.tuples(st.just(True), METHODS, PARAMS) | st.tuples(st.just(False), NOTIFICATIONS, PARAMS),
    max_size=20,
)


async def _play(frames: list[tuple[bool, str, list[Any]]]) -> None:
    async with (
        fake_batcher(max_prefixes=2) as batcher,
        connected(ServiceOf(batcher)) as (session, peer),
        connected(ServiceOf(batcher)) as (_, other),
    ):
        asked = []
        for is_request, method, params in frames:
            if is_request:
                asked.append(peer.request(method, *params))
            else:
                peer.notify(method, *params)
        for msgid in range(1, len(asked) + 1):  # for those whose window is full
            peer.notify("ack", msgid, 2**32)
        await peer.ask("health")
        await asyncio.sleep(0)
        for request in list(session._in_flight.values()):
            peer.notify("cancel", request.id)
        for msgid in asked:
            error, _ = await peer.answer(msgid)
            assert error is None or error["code"] not in ("engine_failed", "unknown")
        assert session.n_in_flight == 0
        assert (await other.ask("generate", "hi", {"max_tokens": 2}))["token_ids"]


@pytest.mark.slow
@settings(max_examples=60)
@given(FRAMES)
def test_whatever_is_asked_is_answered_once(frames: list[tuple[bool, str, list[Any]]]) -> None:
    asyncio.run(_play(frames))
