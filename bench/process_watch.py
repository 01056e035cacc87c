"""What a process holds (memory, files, threads, tasks), and how late its event loop runs. Linux."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from .histogram import TimeHistogram

__all__ = ["Held", "held_now", "rss_mib", "watch_lag"]

_PROCESS = Path("/proc/self")
_TICK = 0.005  # seconds between looks at the loop's lag


@dataclass(frozen=True, slots=True)
class Held:
    """Counts at one time. threads: native ones too. tasks: of the running loop."""

    rss_mib: float
    files: int
    threads: int
    tasks: int


def rss_mib() -> float:
    """Memory that is resident now."""
    pages = int((_PROCESS / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def held_now() -> Held:
    """On a running loop."""
    return Held(
        rss_mib=rss_mib(),
        files=len(os.listdir(_PROCESS / "fd")) - 1,  # the look itself has one open
        threads=len(os.listdir(_PROCESS / "task")),
        tasks=len(asyncio.all_tasks()),
    )


async def watch_lag(lag: TimeHistogram) -> NoReturn:
    """Until cancelled: how much later than it asked for it is woken."""
    while True:
        due = time.monotonic() + _TICK
        await asyncio.sleep(_TICK)
        lag.add(max(0.0, time.monotonic() - due))
