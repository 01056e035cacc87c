"""The client's connection: lost, made anew, and closed."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from batcher_helpers import until
from small_sidecar import LONG, SmallSidecar, n_running, raised_by, sidecar

from pybatcher import (
    Batcher,
    BatcherClosedError,
    Client,
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRequestError,
    StepEvent,
)
from pybatcher.calls.questions import ScoreContinuations
from pybatcher.sidecar.protocol.connection import Limits

pytestmark = pytest.mark.slow

PROMPT = "Once upon a time"
SHORT = 0.2  # seconds; of waits that are to be in vain


# -- lost ---------------------------------------------------------------------------------


async def test_what_is_in_flight_fails_and_never_runs_twice(served: SmallSidecar) -> None:
    batcher = served.batcher
    async with Client(served.path) as client:
        stream = client.stream(PROMPT, **LONG)
        await anext(stream)
        waiting = asyncio.create_task(client.generate(PROMPT, **LONG))
        await until(lambda: batcher.statistics().running == 2)
        served.hang_up()
        with pytest.raises(ConnectionLostError):
            await waiting
        with pytest.raises(ConnectionLostError):
            async for _ in stream:
                pass
        await until(lambda: batcher.statistics().cancelled == 2)
        assert len((await client.generate(PROMPT, max_tokens=3, ignore_eos=True)).token_ids) == 3
        assert batcher.statistics().submitted == 3
        assert served.n_connections == 2


async def test_the_sidecar_may_be_restarted(served: SmallSidecar) -> None:
    async with Client(served.path) as client:
        before = await client.generate(PROMPT, max_tokens=5)
        await served.close()
        late = asyncio.create_task(served.listen_later(SHORT))
        assert await client.tokenize(PROMPT) == await served.batcher.tokenize(PROMPT)
        assert (await client.generate(PROMPT, max_tokens=5)).token_ids == before.token_ids
        await late


async def test_what_waited_for_a_connection_has_the_rest_of_its_time(served: SmallSidecar) -> None:
    left = []
    service = served.batcher._service
    submit, ask = service.submit, service.ask

    async def note_submit(call: Any, reply: Any) -> range:
        left.append(call.timeout)
        return await submit(call, reply)

    async def note_question(question: Any) -> Any:
        if isinstance(question, ScoreContinuations):
            left.append(question.timeout)
        return await ask(question)

    service.submit, service.ask = note_submit, note_question
    async with Client(served.path) as client:
        await served.close()
        late = asyncio.create_task(served.listen_later(SHORT))
        calls = (
            client.generate(PROMPT, max_tokens=1, timeout=30.0),
            client.score(PROMPT, ["x"], timeout=30.0),
        )
        await asyncio.gather(*calls)
        await late
    assert all(0 < one <= 30.0 - SHORT / 2 for one in left)
    assert len(left) == 2


async def test_idle_it_does_not_look_for_the_sidecar(served: SmallSidecar) -> None:
    async with Client(served.path) as client:
        served.hang_up()
        connector = client._service._connector
        await until(lambda: not connector.is_connected)
        assert connector._trying is None
        assert served.n_connections == 1
        assert (await client.health()).ok
        assert served.n_connections == 2


async def test_it_looks_for_the_sidecar_while_somebody_hears_its_events(
    served: SmallSidecar,
) -> None:
    seen: list[Any] = []
    async with Client(served.path) as client:
        client.attach(seen.append)
        for n in (1, 2):
            await until(lambda n=n: served.n_connections == n)
            await until(lambda: served.batcher._telemetry.has_handlers)
            del seen[:]
            await served.batcher.generate(PROMPT, max_tokens=2)
            await until(lambda: any(isinstance(event, StepEvent) for event in seen))
            served.hang_up()
    async with Client(served.path) as client:
        n_before = served.n_connections
        served.hang_up()
        await until(lambda: not client._service._connector.is_connected)
        client.attach(seen.append)
        await until(lambda: served.n_connections == n_before + 1)


async def test_prefixes_are_there_again_after_a_reconnect(served: SmallSidecar) -> None:
    async with Client(served.path) as client:
        await client.add_prefix(PROMPT * 4, name="begin")
        served.hang_up()
        await until(lambda: not served.batcher.prefixes())
        assert (await client.health()).ok
        await until(lambda: len(served.batcher.prefixes()) == 1)


async def test_what_is_called_without_a_sidecar_fails_in_time(served: SmallSidecar) -> None:
    async with Client(served.path) as client:
        client._service._connect_timeout = SHORT
        await served.close()
        await until(lambda: not client._service._connector.is_connected)
        with pytest.raises(ConnectionLostError, match="connect_timeout is how long"):
            await client.generate(PROMPT)
        with pytest.raises(ConnectionLostError):
            await client.health()
    async with sidecar(served.path, served.batcher), Client(served.path) as client:
        one = client._service
        await served_gone(client)
        with pytest.raises(DeadlineExceededError, match="or raise timeout"):
            await client.generate(PROMPT, timeout=0.01)
        with pytest.raises(DeadlineExceededError):
            await client.score(PROMPT, ["x"], timeout=0.01)
        with pytest.raises(DeadlineExceededError):
            await client.add_prefix(PROMPT, timeout=0.01)
        with pytest.raises(InvalidRequestError, match="timeout is -1"):
            await client.generate(PROMPT, timeout=-1)
        assert client._service is one


async def served_gone(client: Client) -> None:
    """Nobody is at the client's path any more, as far as it can know."""
    service = client._service
    service._path = service._path + ".gone"
    service._hang_up()
    await until(lambda: not service._connector.is_connected)


# -- closed -------------------------------------------------------------------------------


async def test_close_finishes_what_is_in_flight(served: SmallSidecar) -> None:
    client = Client(served.path)
    await client.start()
    await client.start()
    call = asyncio.create_task(client.generate(PROMPT, max_tokens=30, ignore_eos=True))
    await until(lambda: n_running(served.batcher) == 1)
    closing = asyncio.gather(client.close(), client.close())
    await asyncio.sleep(0)
    with pytest.raises(BatcherClosedError, match="make another"):
        await client.generate(PROMPT)
    await closing
    assert len((await call).token_ids) == 30
    await until(lambda: not served.sessions)
    assert served.batcher.health().ok


@pytest.mark.parametrize("how", [{"drain": False}, {"timeout": 0.01}], ids=["at once", "in time"])
async def test_close_fails_and_cancels_what_is_not_finished(
    served: SmallSidecar, how: dict[str, Any]
) -> None:
    client = Client(served.path)
    await client.start()
    call = asyncio.create_task(client.generate(PROMPT, **LONG))
    await until(lambda: n_running(served.batcher) == 1)
    await client.close(**how)
    with pytest.raises(BatcherClosedError, match="before this request had ended"):
        await call
    await until(lambda: served.batcher.statistics().cancelled == 1)
    with pytest.raises(InvalidRequestError, match="timeout is -1"):
        await client.close(timeout=-1)


async def test_close_ends_who_waits_for_a_connection(served: SmallSidecar) -> None:
    client = Client(served.path)
    await client.start()
    await served.close()
    await until(lambda: not client._service._connector.is_connected)
    call = asyncio.create_task(client.generate(PROMPT))
    await until(lambda: client._service._connector._waiters)
    await client.close()
    with pytest.raises(BatcherClosedError):
        await call


async def test_a_client_that_is_dropped_hangs_up(served: SmallSidecar) -> None:
    client = Client(served.path)
    await client.start()
    del client
    gc.collect()
    await until(lambda: not served.sessions)


async def test_another_loop_is_told_so(served: SmallSidecar) -> None:
    async with Client(served.path) as client:
        for call in (client.health, lambda: client.generate(PROMPT), client.close):
            error = await asyncio.to_thread(lambda call=call: asyncio.run(raised_by(call)))
            assert isinstance(error, InvalidRequestError)
            assert "another event loop" in str(error)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
async def test_a_fork_keeps_no_connection_that_was_closed(served: SmallSidecar) -> None:
    client = Client(served.path)
    await client.start()
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        await client.close()
        await until(lambda: not served.sessions)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)  # noqa: ASYNC222


async def test_what_the_sidecar_would_not_take_is_refused_here_and_harms_nobody(
    path: Path, batcher: Batcher
) -> None:
    limits = Limits(max_frame=4096)
    async with sidecar(path, batcher, limits) as served, Client(path) as client:
        assert client.limits["max_frame"] == 4096
        call = asyncio.create_task(client.generate(PROMPT, **LONG))
        await until(lambda: n_running(batcher) == 1)
        with pytest.raises(InvalidRequestError, match="4096"):
            await client.generate("x" * 5000)
        assert not call.done()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: n_running(batcher) == 0)
        assert len(served.sessions) == 1
