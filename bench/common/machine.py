"""Describe the machine and the commit that a figure was measured on."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["describe_run"]


BUSY = 0.5  # a load average from which other programs disturb a measurement


# The CPU flags, as in /proc/cpuinfo, that decide the speed of a matrix product.
FLAGS = (
    "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni",
    "amx_tile", "amx_bf16", "amx_int8",
)  # fmt: skip


def describe_run() -> dict[str, Any]:
    """Return command, date, commit and machine of this run, as of its start.

    Warns on stderr if the machine is busy.
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
        "cpu": _cpu_field("model name") or platform.processor() or platform.machine(),
        "cpu_flags": [flag for flag in FLAGS if flag in _cpu_field("flags").split()],
        "cores": os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "load_average": load,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _commit() -> str:
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
        )
    except OSError:  # git is not installed
        return "unknown"
    return described.stdout.strip() or "unknown"


def _cpu_field(name: str) -> str:
    """Return a field of the first CPU in /proc/cpuinfo; "" if absent."""
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""
