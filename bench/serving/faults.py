"""Inject faults into a sidecar's worker and time the recovery. Linux, x86-64."""

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

from bench.serving.sidecar_process import Sidecar, is_gone
from pybatcher.sidecar.front.worker_process import WorkerProcess

__all__ = ["Fault", "inject", "inject_and_wait", "record_pauses", "unexpected_ends", "worker_start"]

_TIMEOUT = 120.0  # seconds for a worker to serve
_TGKILL = 234  # a signal to one thread
_SERVES = re.compile(r"worker (\d+) serves .* after ([\d.]+) s")


@dataclass(slots=True)
class Fault:
    """An injected fault and its effect. Times are in seconds.

    kind: name of the signal. at: `time.monotonic` of the injection. noticed: from `at` to the end
    of the worker's process. ready: from there until another worker serves. waited: age of the next
    worker's process at that time; it may have been started earlier, without a model. pause: the
    longest gap of a stream that the fault fell into.
    """

    kind: str
    at: float
    noticed: float = 0.0
    ready: float = 0.0
    waited: float = 0.0
    pause: float = 0.0

    def split(self, start: float, begin: float) -> dict[str, Any]:
        """Return the fault as JSON fields, with the pause split into its parts.

        start: seconds in which a worker process starts, before it loads a model. begin: start of
        the run, `time.monotonic`. The parts: noticed, start, load, and replay, which is the rest.
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


def inject(kind: str, pid: int) -> None:
    """Send the worker process the signal named `kind`; SIGABRT goes to a computing thread."""
    number = getattr(signal, kind)
    if kind != "SIGABRT":
        os.kill(pid, number)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_TGKILL, pid, _computing_thread(pid), number) != 0:
        raise OSError(ctypes.get_errno(), "tgkill")


def _computing_thread(pid: int) -> int:
    """Return the id of a thread that runs now; else that of the main thread."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):
            state = Path(f"/proc/{pid}/task/{task}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "R" and int(task) != pid:
                return int(task)
    return pid


def process_age(pid: int) -> float:
    """Return the seconds since the process was started, to a hundredth."""
    began = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began / os.sysconf("SC_CLK_TCK")


async def inject_and_wait(kind: str, sidecar: Sidecar) -> Fault:
    """Inject a fault into the serving worker; return when another worker serves.

    Raises RuntimeError with the end of the log if none serves within 120 s.
    """
    pid, *followers = sidecar.worker_pids
    n_served = len(_SERVES.findall(sidecar.said()))
    fault = Fault(kind, time.monotonic())
    inject(kind, pid)
    while not is_gone(pid):  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.002)
    fault.noticed = time.monotonic() - fault.at
    fault.waited = process_age(followers[0]) if followers else 0.0
    while len(served := _SERVES.findall(sidecar.said())) == n_served:
        if not sidecar.is_alive or time.monotonic() - fault.at > _TIMEOUT:
            raise RuntimeError(f"no worker serves after {kind}:\n{sidecar.said()[-2000:]}")
        await asyncio.sleep(0.02)
    fault.ready = float(served[n_served][1])
    return fault


def unexpected_ends(sidecar: Sidecar, faults: Sequence[Fault]) -> list[str]:
    """Return the log's warnings and errors if more workers ended than faults were injected.

    [] if the counts agree.
    """
    said = sidecar.said()
    if len(_SERVES.findall(said)) <= 1 + len(faults):
        return []
    lines = [line for line in said.splitlines() if "warning" in line or "error" in line]
    return ["a worker ended without an injected fault; the log:", *lines]


def record_pauses(faults: Sequence[Fault], gaps: Sequence[tuple[float, float]]) -> None:
    """Set each fault's pause: the longest gap that began before the worker's end was noticed.

    gaps: (begin, end) of all streams. Tokens that were on their way at the fault still arrive.
    """
    for fault in faults:
        over = fault.at + fault.noticed
        hit = [end - begin for begin, end in gaps if begin <= over and fault.at <= end]
        fault.pause = max(hit, default=0.0)


async def worker_start() -> float:
    """Start a worker process without a model; return the seconds until its first byte."""
    begin = time.monotonic()
    process = WorkerProcess.spawn()
    try:
        await asyncio.get_running_loop().sock_recv(process.sock, 1)
        return time.monotonic() - begin
    finally:
        process.kill()
        process.sock.close()
        await process.wait()
