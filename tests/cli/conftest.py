"""Fixtures: run a command in this process; a sidecar for commands that connect to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from command_line import Run, runner
from serving_doubles import Serving, serving


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command in this process."""
    return runner(monkeypatch, capsys)


@pytest.fixture(scope="session")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A real `pybatcher serve` with the shipped model. Tests must not change it."""
    with serving(tmp_path_factory.mktemp("sidecar")) as running:
        yield running
