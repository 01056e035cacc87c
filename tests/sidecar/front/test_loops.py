"""The sidecar runs on uvloop where that is installed, and on asyncio where it is not."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from pybatcher.sidecar.front.loops import new_loop, run

WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


async def loop_module() -> str:
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]


def test_it_runs_on_uvloop() -> None:
    assert run(loop_module()) == "uvloop"


def test_without_uvloop_it_runs_on_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert new_loop() is None
    assert run(loop_module()) == "asyncio"


@pytest.mark.slow
def test_without_descriptors_accepting_pauses_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """On asyncio, as uvloop accepts and closes such connections itself."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    n_tries = 0

    class Full(socket.socket):
        def accept(self) -> Any:
            nonlocal n_tries
            n_tries += 1
            raise OSError(errno.EMFILE, "Too many open files")

    async def crowd() -> None:
        listening = Full(socket.AF_UNIX)
        listening.bind(str(tmp_path / "s"))
        listening.listen(100)
        listening.setblocking(False)
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(asyncio.Protocol, sock=listening, backlog=1)
        listening.listen(100)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(20)]
        for one in clients:
            one.connect(str(tmp_path / "s"))
        await asyncio.sleep(1.2)
        loop.call_exception_handler({"message": "another"})
        for one in clients:
            one.close()
        server.close()

    run(crowd())
    assert n_tries == 2
    waiting = [one for one in caplog.messages if one.startswith("new connections wait")]
    assert len(waiting) == 1
    assert "Too many open files" in waiting[0]
    assert len(caplog.messages) == 2


def test_what_is_raised_comes_out() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run(fail())


def test_garbage_is_collected_in_larger_lots_meanwhile() -> None:
    before = gc.get_threshold()

    async def thresholds() -> tuple[int, int, int]:
        return gc.get_threshold()

    expected = before if WITHOUT_GIL else (10_000, 100, before[2])
    assert run(thresholds()) == expected
    assert gc.get_threshold() == before


def test_what_stays_of_many_that_come_is_not_looked_at_again_and_again() -> None:
    looked_at = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looked_at.append(info["generation"])

    async def keep() -> list[list[int]]:
        gc.collect()
        gc.callbacks.append(note)
        try:
            return [[] for _ in range(500_000)]  # as many as 10,000 connections have
        finally:
            gc.callbacks.remove(note)

    assert len(run(keep())) == 500_000
    # Without the GIL there are no generations, and it may not have looked at all.
    assert set(looked_at) == {0} or (WITHOUT_GIL and not looked_at)
