"""Runs clients as programs of their own, with no way out of this machine."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

__all__ = [
    "ANSWER",
    "CLIENTS",
    "Server",
    "closed_environment",
    "run_client",
    "run_node",
    "run_python",
]

_PROGRAMS = Path(__file__).parents[1] / "programs"
_PATIENCE = 540.0  # seconds for what takes 20 on a machine of its own
# Nobody listens at this port: what goes anywhere but to this machine fails at once.
_NOWHERE = "http://127.0.0.1:9"

ANSWER = "Nine spotted owls counted the lanterns by the river."
"""What the model with known turns says at the end of each conversation."""

CLIENTS = Path(os.environ["PYBATCHER_CLIENTS"]) if os.environ.get("PYBATCHER_CLIENTS") else None
"""Where `tests/clients/install.py` has put the clients; None: these tests were not asked for."""


@dataclass(frozen=True)
class Server:
    """Where a model is served, and its name."""

    url: str
    model: str


def closed_environment(home: Path, more: Mapping[str, str] = {}) -> dict[str, str]:
    """Return an environment without settings of this user, and without a network."""
    home.mkdir(exist_ok=True)
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), _NOWHERE)
    local = {"NO_PROXY": "127.0.0.1,localhost"}
    both = {**proxies, **local}
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        **both,
        **{name.lower(): value for name, value in both.items()},
        **more,
    }


def run_client(command: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run a client to its end, which has to be a good one; return what it printed."""
    made = subprocess.run(
        command,
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )
    assert made.returncode == 0, (
        f"{command} ended with {made.returncode}:\n{made.stdout}\n{made.stderr}"
    )
    return made.stdout


def run_python(program: str, server: Server, folder: Path, *arguments: str, **more: str) -> Any:
    """Run one of tests/clients/programs with the clients of PyPI; return the JSON it prints.

    more: variables of its environment.
    """
    assert CLIENTS is not None
    command = [str(CLIENTS / "python" / "bin" / "python"), str(_PROGRAMS / program)]
    return _program([*command, server.url, server.model, *arguments], folder, more)


def run_node(program: str, server: Server, folder: Path) -> Any:
    """Run one of tests/clients/programs with the clients of npm; return the JSON it prints."""
    assert CLIENTS is not None
    # Node looks for modules in the folders above a program.
    copy = CLIENTS / "node" / f"{os.getpid()}-{program}"
    copy.write_text((_PROGRAMS / program).read_text())
    try:
        return _program(["node", str(copy), server.url, server.model], folder, {})
    finally:
        copy.unlink()


def unit(vector: Any) -> Any:
    """Return what a vector of the batcher is over HTTP: it has length 1. Equal within 1e-6."""
    return pytest.approx((vector / np.linalg.norm(vector)).tolist(), abs=1e-6)


def _program(command: list[str], folder: Path, more: Mapping[str, str]) -> Any:
    printed = run_client(command, folder, closed_environment(folder / "home", more))
    return json.loads(printed.splitlines()[-1])
