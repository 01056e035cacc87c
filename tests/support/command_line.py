"""Run a command of pybatcher in this process, as a user would type it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from pybatcher.cli import main

__all__ = ["Outcome", "Run", "runner"]


@dataclass(frozen=True)
class Outcome:
    status: int
    stdout: str
    stderr: str


Run = Callable[..., Outcome]


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command: `run("generate", "Once", stdin=b"")`."""

    def run(*arguments: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["pybatcher", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), "utf-8"))
        with pytest.raises(SystemExit) as raised:
            main()
        captured = capsys.readouterr()
        return Outcome(int(raised.value.code or 0), captured.out, captured.err)

    return run
