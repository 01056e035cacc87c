"""What a figure was measured on and from: a figure without it says little."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path

__all__ = ["describe_run"]


BUSY = 0.5  # load average from which others are felt


def describe_run() -> dict[str, str | float]:
    """The command, the date, the commit and the machine of this run, before it begins.

    Says on stderr if the machine is busy with something else.
    """
    load = round(os.getloadavg()[0], 2)
    if load >= BUSY:
        print(f"load average {load}: these figures will say little", file=sys.stderr)
    module = sys.modules["__main__"].__spec__
    command = f"python -m {module.name if module else Path(sys.argv[0]).name}"
    return {
        "command": " ".join([command, *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "cpu": _cpu_name(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "load_average": load,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _commit() -> str:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
