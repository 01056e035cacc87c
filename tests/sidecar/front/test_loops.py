"""The sidecar runs on uvloop where that is installed, and on asyncio where it is not."""

from __future__ import annotations

import asyncio
import gc
import sys
import sysconfig

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
