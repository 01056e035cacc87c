"""A batcher that is called from other threads and other event loops.

Streams are in `test_streams.py`, the batcher without asyncio in `test_blocking.py`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest
from batcher_helpers import PATIENCE, until

from pybatcher import BatcherClosedError, Completion, InvalidRequestError, RequestTooLongError
from pybatcher.testing import FakeEngine, fake_batcher

PROMPT = "Once upon a time"
LONG = {"max_tokens": 8000, "ignore_eos": True}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
MESSAGES = [{"role": "user", "content": PROMPT}]


async def test_generate_and_chat_from_many_threads() -> None:
    async with fake_batcher(chat_template=TEMPLATE, n_parallel=4) as batcher:
        remote = batcher.threadsafe

        def call(i: int) -> tuple[Completion, Completion]:
            generated = remote.generate(f"{PROMPT} {i}", max_tokens=9, temperature=1.0, seed=i)
            chatted = remote.chat(MESSAGES, max_tokens=9, timeout=60.0)
            return generated.result(PATIENCE), chatted.result(PATIENCE)

        with ThreadPoolExecutor(8) as threads:
            calls = [threads.submit(call, i) for i in range(8)]
            pairs = await asyncio.gather(*map(asyncio.wrap_future, calls))
        for i, (generated, chatted) in enumerate(pairs):
            same = {"max_tokens": 9, "temperature": 1.0, "seed": i}
            here = await batcher.generate(f"{PROMPT} {i}", **same)
            assert generated.token_ids == here.token_ids
            assert chatted.text == (await batcher.chat(MESSAGES, max_tokens=9)).text


async def test_tokens_of_texts_and_texts_of_tokens() -> None:
    async with fake_batcher(chat_template=TEMPLATE) as batcher:
        remote = batcher.threadsafe
        tokens = await asyncio.wrap_future(remote.tokenize(MESSAGES))
        assert tokens == (await asyncio.wrap_future(remote.tokenize(PROMPT)))[1:]
        assert await asyncio.wrap_future(remote.detokenize(tokens)) == PROMPT
        assert await asyncio.wrap_future(remote.model_info()) == await batcher.model_info()
        with pytest.raises(InvalidRequestError, match="token_ids"):
            await asyncio.wrap_future(remote.detokenize([-1]))


async def test_from_another_loop() -> None:
    async with fake_batcher(chat_template=TEMPLATE) as batcher:

        async def elsewhere() -> Completion:
            return await asyncio.wrap_future(batcher.threadsafe.generate(PROMPT, max_tokens=9))

        completion = await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        assert completion.token_ids == (await batcher.generate(PROMPT, max_tokens=9)).token_ids


async def test_errors_come_out_of_the_future() -> None:
    async with fake_batcher(n_ctx=64, max_restarts=0) as batcher:
        for prompt, arguments, error in (
            (PROMPT, {"max_token": 1}, InvalidRequestError),
            (PROMPT, {"timeout": -1}, InvalidRequestError),
            (PROMPT * 9, {}, RequestTooLongError),
        ):
            future = batcher.threadsafe.generate(prompt, **arguments)
            with pytest.raises(error):
                await asyncio.wrap_future(future)


@pytest.mark.parametrize("how", ["future", "task of another loop"])
async def test_cancelling_elsewhere_cancels_the_request(how: str) -> None:
    engine = FakeEngine(step_delay=0.001)
    async with fake_batcher(engine) as batcher:
        seen = threading.Event()

        async def elsewhere() -> None:
            future = asyncio.wrap_future(batcher.threadsafe.generate(PROMPT, **LONG))
            await asyncio.to_thread(seen.wait, PATIENCE)
            future.cancel()

        if how == "future":
            future = batcher.threadsafe.generate(PROMPT, **LONG)
            await until(lambda: batcher.statistics().running == 1)
            assert await asyncio.to_thread(future.cancel)
            with pytest.raises(CancelledError):
                future.result(0)
        else:
            running = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(elsewhere())))
            await until(lambda: batcher.statistics().submitted == 1)
            seen.set()
            await running
        await until(lambda: batcher.statistics().cancelled == 1)
        await until(lambda: engine.used_sequences == 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
async def test_before_start_after_close_and_in_a_fork() -> None:
    batcher = fake_batcher()
    remote = batcher.threadsafe
    with pytest.raises(BatcherClosedError, match="not started"):
        remote.generate(PROMPT)
    async with batcher:
        assert (await asyncio.wrap_future(remote.generate(PROMPT, max_tokens=1))).token_ids
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                remote.generate(PROMPT)
            except Exception as error:
                os.write(writer, f"{type(error).__name__}: {error}".encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            told = await asyncio.to_thread(pipe.read)
        await asyncio.to_thread(os.waitpid, child, 0)
        assert told.startswith("BatcherClosedError: the batcher runs in process")
    with pytest.raises(BatcherClosedError, match="is closed"):
        remote.generate(PROMPT)
    with pytest.raises(BatcherClosedError, match="is closed"):
        remote.chat(MESSAGES)


def test_threads_that_call_while_the_loop_ends_all_get_an_end() -> None:
    endings: list[str] = []

    def keep_calling(remote: Any) -> None:
        try:
            while True:
                remote.generate(PROMPT, max_tokens=2).result(PATIENCE)
        except (BatcherClosedError, CancelledError) as error:
            endings.append(type(error).__name__)

    async def main(close: bool) -> list[threading.Thread]:
        batcher = fake_batcher()
        await batcher.start()
        threads = [
            threading.Thread(target=keep_calling, args=(batcher.threadsafe,)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        await until(lambda: batcher.statistics().completed > 8)
        if close:
            await batcher.close()
        return threads

    for close in (True, False):
        for thread in asyncio.run(main(close)):
            thread.join(PATIENCE)
    assert len(endings) == 8


async def test_an_argument_that_there_is_not_ends_the_future() -> None:
    async with fake_batcher() as batcher:
        future = batcher.threadsafe.score("a", ["b"], no_such_argument=1)
        with pytest.raises(InvalidRequestError, match="no_such_argument"):
            await asyncio.wait_for(asyncio.wrap_future(future), PATIENCE)


@pytest.mark.parametrize("method", ["generate", "tokenize"])
async def test_who_waits_on_the_batchers_own_loop_is_told_so(method: str) -> None:
    async with fake_batcher() as batcher:
        future = getattr(batcher.threadsafe, method)(PROMPT)
        for wait in (future.result, future.exception):
            with pytest.raises(InvalidRequestError, match="await the batcher's own method"):
                wait()
            with pytest.raises(InvalidRequestError, match="would wait for ever"):
                wait(1.0)
        assert await asyncio.wrap_future(future)
        assert future.result(), "there it is, and nobody has to wait for it"


async def test_prefixes_are_there_at_once() -> None:
    async with fake_batcher(max_prefixes=2) as batcher:
        remote = batcher.threadsafe
        await asyncio.wrap_future(remote.add_prefix("Once upon", name="once"))
        found = await asyncio.to_thread(remote.prefixes)
        assert found == batcher.prefixes()
        assert [info.name for info in found] == ["once"]
        await asyncio.wrap_future(remote.remove_prefix("once"))
        assert remote.prefixes() == ()
