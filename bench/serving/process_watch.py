"""Resources of a process (memory, files, threads, tasks) and the lag of its event loop. Linux.

    python -m bench.process_watch

runs an idle process that prints its lag as JSON when its input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from bench.common.histogram import TimeHistogram
from bench.engines.engine_list import ROOT

__all__ = [
    "IdleProcess",
    "ResourceUsage",
    "cpu_seconds",
    "n_files",
    "resource_usage",
    "rss_mib",
    "watch_lag",
]

_PROCESS = Path("/proc/self")
_TICK = 0.005  # seconds between measurements of the loop's lag


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """Resources at one time. threads: native ones included. tasks: of the running loop."""

    rss_mib: float
    files: int
    threads: int
    tasks: int


def rss_mib(pid: int | None = None) -> float:
    """Return the resident memory, in MiB, of this process or another."""
    pages = int((_of(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def n_files(pid: int) -> int:
    """Return the number of open descriptors of another process."""
    return len(os.listdir(_of(pid) / "fd"))


def cpu_seconds(pid: int | None = None) -> float:
    """Return the CPU seconds of this process or another, all threads, user and system."""
    times = (_of(pid) / "stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def _of(pid: int | None) -> Path:
    return _PROCESS if pid is None else Path(f"/proc/{pid}")


def resource_usage() -> ResourceUsage:
    """Return this process's resources. Call it on a running loop."""
    return ResourceUsage(
        rss_mib=rss_mib(),
        files=len(os.listdir(_PROCESS / "fd")) - 1,  # the listing itself opens one descriptor
        threads=len(os.listdir(_PROCESS / "task")),
        tasks=len(asyncio.all_tasks()),
    )


async def watch_lag(lag: TimeHistogram) -> NoReturn:
    """Record, until cancelled, how much later than due the loop wakes this task."""
    while True:
        due = time.monotonic() + _TICK
        await asyncio.sleep(_TICK)
        lag.add(max(0.0, time.monotonic() - due))


class IdleProcess:
    """A process beside this one that does nothing: its lag is that of the machine."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench.serving.process_watch"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # its measurement has begun

    def close(self) -> dict[str, float]:
        """End the process; return percentiles of its lag, in seconds."""
        output, _ = self._process.communicate()
        found: dict[str, float] = json.loads(output)
        return found


async def _watch_until_input_ends() -> TimeHistogram:
    lag = TimeHistogram()
    watch = asyncio.create_task(watch_lag(lag))
    await asyncio.sleep(3 * _TICK)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    watch.cancel()
    return lag


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_watch_until_input_ends()).percentiles()))
