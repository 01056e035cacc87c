"""Programs that bench.gpu_check runs, each with a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

__all__ = ["Finished", "run_program"]

TAIL = 4000  # characters of the error output that are reported


@dataclass(frozen=True, slots=True)
class Finished:
    """A program that has ended. status: None if it exceeded its time and was killed."""

    status: int | None
    output: str
    errors: str
    seconds: float

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON objects in the lines of its output. An incomplete line is left out."""
        found = []
        for line in self.output.splitlines():
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
        return found

    def describe_end(self) -> str:
        """Return the way in which it ended, with the last line of its error output."""
        lines = (self.errors.strip() or self.output.strip()).splitlines()
        last = f": {lines[-1][:500]}" if lines else ""
        if self.status is None:
            return f"killed after {self.seconds:.0f} s, when the stage's time was over{last}"
        return f"ended with {self.status}{last}"


def run_program(
    command: Sequence[str | Path],
    seconds: float,
    *,
    env: Mapping[str, str],
    cwd: Path,
) -> Finished:
    """Run a program to its end, or kill it and its children after `seconds`."""
    begin = time.monotonic()
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
    )
    output: list[str] = []
    errors: list[str] = []

    assert process.stdout is not None
    assert process.stderr is not None
    readers = [
        Thread(target=output.extend, args=(process.stdout,)),
        Thread(target=errors.extend, args=(process.stderr,)),
    ]
    for reader in readers:
        reader.start()
    status: int | None = None
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(max(0.0, seconds))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also kills children that are still running
        process.wait()
        for reader in readers:
            reader.join()
        process.stdout.close()
        process.stderr.close()
    return Finished(status, "".join(output), "".join(errors)[-TAIL:], time.monotonic() - begin)
