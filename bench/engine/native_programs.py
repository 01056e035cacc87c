"""Builds the C++ programs of bench/native in the folder of `make native`, and runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from bench.engines.engine_list import ROOT

__all__ = ["build", "run"]

FOLDER = ROOT / "build" / "native"


@cache
def build() -> None:
    """Bring the programs up to date, once per process. The first build takes a minute or two.

    Exits if `make build` has not been run.
    """
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count()))
    if not (FOLDER / "CMakeCache.txt").exists():
        sys.exit(f"{FOLDER} is not there: run `make build` first")
    for command in (
        ["cmake", "-S", str(ROOT), "-B", str(FOLDER), "-DPYBATCHER_NATIVE_TESTS=ON"],
        ["cmake", "--build", str(FOLDER), "--target", "bench_native", "--parallel", jobs],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def run(program: str, *arguments: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects that a program prints, one per line, as they arrive."""
    build()  # an older program would measure older code
    command = [str(FOLDER / program), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
