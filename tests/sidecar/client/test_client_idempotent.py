"""A client whose calls are idempotent: what is in flight when the connection is lost goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from batcher_helpers import PATIENCE, until
from small_sidecar import LONG, MESSAGES, SmallSidecar, n_running

from pybatcher import Client, ConnectionLostError
from pybatcher.calls.call import Call
from pybatcher.calls.reply import Reply

PROMPT = "Once upon a time"
SHORT = 0.2  # seconds; of waits that are to be in vain
SAMPLED = {"temperature": 1.0, "seed": 7, "max_tokens": 60, "ignore_eos": True}

BESIDE = {"priority": 0, "timeout": None, "namespace": None}


async def test_idempotent_streams_go_on_with_the_same_tokens(served: SmallSidecar) -> None:
    alone = await served.batcher.generate(PROMPT, **SAMPLED)
    async with Client(served.path, idempotent=True) as client:
        stream = client.stream(PROMPT, **SAMPLED)
        pieces = []
        async for piece in stream:
            pieces.append(piece)
            if len(pieces) in (1, 10, 11, 40):
                served.hang_up()
        assert sum((piece.token_ids for piece in pieces), ()) == alone.token_ids
        assert "".join(map(str, pieces)) == alone.text
        assert stream.completion.token_ids == alone.token_ids
        assert stream.completion.text == alone.text
        assert stream.completion.usage.completion_tokens == 60
        assert served.n_connections == 5


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.generate(PROMPT, **SAMPLED),
        lambda one: one.generate(PROMPT, n=3, logprobs=1, **SAMPLED),
        lambda one: one.chat(MESSAGES, **SAMPLED),
        lambda one: one.score([1] * 4000, [[1, 2]] * 4),
    ],
    ids=["generate", "samples", "chat", "score"],
)
async def test_idempotent_calls_go_on(served: SmallSidecar, call: Callable[[Any], Any]) -> None:
    alone = await call(served.batcher)
    async with Client(served.path, idempotent=True) as client:
        calling = asyncio.create_task(call(client))
        await until(lambda: n_running(served.batcher) > 0)
        served.hang_up()
        here = await calling
        if isinstance(alone, list):
            assert here == alone
            return
        for mine, other in zip(here.choices, alone.choices, strict=True):
            assert mine.token_ids == other.token_ids
            assert mine.text == other.text
            assert mine.logprobs == other.logprobs


async def test_a_seed_that_nobody_gave_is_the_same_after_a_reconnect(served: SmallSidecar) -> None:
    asked = []
    submit = served.batcher._service.submit

    async def note(call: Any, reply: Any) -> range:
        asked.append(call)
        return await submit(call, reply)

    served.batcher._service.submit = note
    async with Client(served.path, idempotent=True) as client:
        stream = client.stream(PROMPT, temperature=1.0, max_tokens=40, ignore_eos=True)
        await anext(stream)
        served.hang_up()
        async for _ in stream:
            pass
    first, second = asked
    assert first.params.seed == second.params.seed is not None
    assert tuple(second.output) == stream.completion.token_ids[: len(second.output)] != ()


async def test_idempotent_calls_do_not_wait_for_ever(served: SmallSidecar) -> None:
    async with Client(served.path, idempotent=True) as client:
        client._service._connect_timeout = SHORT
        await client.add_prefix(PROMPT, name="begin")
        waiting = asyncio.create_task(client.generate(PROMPT, **LONG))
        await until(lambda: n_running(served.batcher) > 0)
        await served.close()
        with pytest.raises(ConnectionLostError, match="is `pybatcher serve` running"):
            await waiting
        await served.listen()
        await reached(client)
        assert (await client.generate(PROMPT, max_tokens=2, ignore_eos=True)).token_ids
        await until(lambda: len(served.batcher.prefixes()) == 1)


async def reached(client: Client) -> None:
    """Returns when the client is connected again, however often its short time is over before."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(ConnectionLostError):
                await client.health()
                return


async def test_a_cancel_that_comes_late_meets_no_other_call(served: SmallSidecar) -> None:
    async with Client(served.path, idempotent=True) as client:
        client._service._connect_timeout = SHORT
        service, reply = client._service, Reply(streams=False)
        asked = Call(content=PROMPT, params=None, sampling=LONG, **BESIDE)
        request_ids = await service.submit(asked, reply)
        await until(lambda: n_running(served.batcher) > 0)
        await served.close()
        await until(lambda: reply.ended)
        await served.listen()
        await reached(client)
        next_call = asyncio.create_task(client.generate(PROMPT, max_tokens=20, ignore_eos=True))
        await until(lambda: n_running(served.batcher) > 0 or next_call.done())
        service.cancel(request_ids)
        assert len((await next_call).token_ids) == 20
