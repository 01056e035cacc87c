"""`Lifecycle`: the order of start and end, whatever serves."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from batcher_helpers import until
from typing_extensions import override

from pybatcher import (
    Batcher,
    BatcherClosedError,
    BlockingBatcher,
    BlockingClient,
    Client,
    InvalidRequestError,
)
from pybatcher.calls.lifecycle import Lifecycle, RunningService


class Service(RunningService):
    """Notes how it ends."""

    def __init__(self, ends: list[object]) -> None:
        self.ends = ends

    @override
    async def close(self, drain: bool, timeout: float | None) -> None:
        self.ends.append((drain, timeout))

    @override
    def abandon(self) -> None:
        self.ends.append("abandoned")

    async def submit(self, call: object, reply: object) -> range:
        raise AssertionError("no call is made here")

    def cancel(self, request_ids: range) -> None:
        raise AssertionError("no call is made here")

    async def ask(self, question: object) -> Any:
        raise AssertionError("no call is made here")

    def attach(self, handler: object) -> Any:
        raise AssertionError("no call is made here")


class Own(Lifecycle):
    """One of whose services a test counts the starts and the ends."""

    _own_name = "thing"

    def __init__(self, opening: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.opening = opening
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.n_starts = 0
        self.ends: list[object] = []

    @override
    async def _start_service(self) -> Service:
        self.n_starts += 1
        await self.go_on.wait()
        self.opening()
        return Service(self.ends)


async def test_started_twice_it_starts_once() -> None:
    own = Own()
    await asyncio.gather(own.start(), own.start())
    service = own._running_service()
    await own.start()
    assert own.n_starts == 1
    assert own._running_service() is service
    await own.close()


async def test_before_the_start_there_is_no_service() -> None:
    own = Own()
    with pytest.raises(BatcherClosedError, match="the thing was not started; use `async with"):
        own._running_service()


async def test_closed_before_the_start_it_starts_no_more() -> None:
    own = Own()
    await own.close()
    with pytest.raises(BatcherClosedError, match="the thing was closed; make another"):
        await own.start()
    assert (own.n_starts, own.ends) == (0, [])


async def test_closed_twice_both_wait_for_the_services_end() -> None:
    own = Own()
    await own.start()
    await own.close(drain=False, timeout=2.0)
    await own.close()
    assert own.ends == [(False, 2.0), (True, None)]
    with pytest.raises(BatcherClosedError, match="was closed"):
        await own.start()


async def test_closed_while_it_starts_it_closes_what_has_started() -> None:
    own = Own()
    own.go_on.clear()
    starting = asyncio.create_task(own.start())
    await until(lambda: own.n_starts == 1)
    closing = asyncio.create_task(own.close())
    own.go_on.set()
    await asyncio.gather(starting, closing)
    assert own.ends == [(True, None)]


async def test_a_start_that_failed_may_be_tried_again() -> None:
    errors = [OSError("no model")]

    def opening() -> None:
        if errors:
            raise errors.pop()

    own = Own(opening)
    with pytest.raises(OSError, match="no model"):
        await own.start()
    with pytest.raises(BatcherClosedError, match="not started"):
        own._running_service()
    await own.start()
    assert own.n_starts == 2
    await own.close()


async def test_arguments_that_are_none_leave_it_open() -> None:
    async with Own() as own:
        with pytest.raises(InvalidRequestError, match="timeout is 0"):
            await own.close(timeout=0)
        await own.start()
        assert own.ends == []


async def test_the_end_of_with_drains_unless_an_exception_is_under_way() -> None:
    async with Own() as own:
        pass
    assert own.ends == [(True, None)]
    with pytest.raises(KeyError):
        async with Own() as own:
            raise KeyError
    assert own.ends == [(False, None)]


@pytest.mark.slow
@pytest.mark.parametrize("closed", [False, True])
async def test_dropped_it_abandons_the_service_unless_that_has_ended(closed: bool) -> None:
    own = Own()
    await own.start()
    ends = own.ends
    if closed:
        await own.close()
    del own
    gc.collect()
    assert ends == ([(True, None)] if closed else ["abandoned"])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", [Batcher, BlockingBatcher, Client, BlockingClient])
def test_copies_are_refused(copied: Callable[[object], object], kind: type) -> None:
    name = "client" if "Client" in kind.__name__ else "batcher"
    with pytest.raises(TypeError, match=f"^a {name} cannot be copied or pickled.*share a sidecar"):
        copied(kind("somewhere"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_leaves_with_its_own_status() -> None:
    """The parent ends at once: the end of the child's loop removes the wakeups of its own one."""
    code = """
import asyncio, os, sys
from pybatcher.testing import fake_batcher

async def main():
    async with fake_batcher():
        if (pid := os.fork()) == 0:
            sys.exit(7)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

asyncio.run(main())
"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (made.returncode, made.stderr) == (7, "")
