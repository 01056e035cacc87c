"""Blows to a sidecar's worker, and what becomes of the streams after one. Linux, x86-64."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybatcher.sidecar.front.worker_process import WorkerProcess

from .sidecar_process import Sidecar, is_gone

__all__ = ["Blow", "deal", "ends_of_their_own", "note_pauses", "strike", "worker_start"]

_PATIENCE = 120.0  # seconds for a worker to serve
_TGKILL = 234  # a signal to one thread
_SERVES = re.compile(r"worker (\d+) serves .* after ([\d.]+) s")


@dataclass(slots=True)
class Blow:
    """Times in seconds. at: of time.monotonic. noticed: from the blow to the worker's end.

    ready: from there until another serves. waited: how old the process that followed was by then:
    it may have been kept ready, without a model. pause: the longest of a stream, all of it.
    """

    kind: str
    at: float
    noticed: float = 0.0
    ready: float = 0.0
    waited: float = 0.0
    pause: float = 0.0

    def split(self, start: float, begin: float) -> dict[str, Any]:
        """The pause in its parts: noticing, starting a process, loading, and the rest.

        start: seconds until a worker process says its first word. begin: of the run.
        """
        starting = min(max(0.0, start - self.waited), self.ready)
        return {
            "kind": self.kind,
            "at": self.at - begin,
            "pause": self.pause,
            "noticed": self.noticed,
            "start": starting,
            "load": self.ready - starting,
            "replay": max(0.0, self.pause - self.noticed - self.ready),
        }


def strike(kind: str, pid: int) -> None:
    """kind: the name of a signal; SIGABRT goes to a thread that computes right now."""
    number = getattr(signal, kind)
    if kind != "SIGABRT":
        os.kill(pid, number)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_TGKILL, pid, _computing_thread(pid), number) != 0:
        raise OSError(ctypes.get_errno(), "tgkill")


def _computing_thread(pid: int) -> int:
    """One that runs; else the first."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):
            state = Path(f"/proc/{pid}/task/{task}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "R" and int(task) != pid:
                return int(task)
    return pid


def age(pid: int) -> float:
    """Seconds since that process was started, to a hundredth."""
    began = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK")


async def deal(kind: str, sidecar: Sidecar) -> Blow:
    """Strike the worker; return when another serves."""
    pid, *followers = sidecar.worker_pids
    n_served = len(_SERVES.findall(sidecar.said()))
    blow = Blow(kind, time.monotonic())
    strike(kind, pid)
    while not is_gone(pid):  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.002)
    blow.noticed = time.monotonic() - blow.at
    blow.waited = age(followers[0]) if followers else 0.0
    while len(served := _SERVES.findall(sidecar.said())) == n_served:
        if not sidecar.is_alive or time.monotonic() - blow.at > _PATIENCE:
            raise RuntimeError(f"no worker serves after {kind}:\n{sidecar.said()[-2000:]}")
        await asyncio.sleep(0.02)
    blow.ready = float(served[n_served][1])
    return blow


def ends_of_their_own(sidecar: Sidecar, blows: Sequence[Blow]) -> list[str]:
    """What the log says of workers that ended, if more did than were struck."""
    said = sidecar.said()
    if len(_SERVES.findall(said)) <= 1 + len(blows):
        return []
    lines = [line for line in said.splitlines() if "warning" in line or "error" in line]
    return ["a worker ended that nobody struck; the log:", *lines]


def note_pauses(blows: Sequence[Blow], gaps: Sequence[tuple[float, float]]) -> None:
    """Note in each blow the longest gap that began before its worker's end was noticed.

    What was on its way when the worker was struck still arrives.
    """
    for blow in blows:
        over = blow.at + blow.noticed
        hit = [end - begin for begin, end in gaps if begin <= over and blow.at <= end]
        blow.pause = max(hit, default=0.0)


async def worker_start() -> float:
    """Seconds until a worker process says its first word, before it has any model."""
    begin = time.monotonic()
    process = WorkerProcess.spawn()
    try:
        await asyncio.get_running_loop().sock_recv(process.sock, 1)
        return time.monotonic() - begin
    finally:
        process.kill()
        process.sock.close()
        await process.wait()
