"""A command in this process, and a sidecar for those that ask one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from command_line import Run, runner
from serving_doubles import Serving, serving


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process."""
    return runner(monkeypatch, capsys)


@pytest.fixture(scope="session")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A real `pybatcher serve` with the model that ships inside. Not to be changed."""
    with serving(tmp_path_factory.mktemp("sidecar")) as running:
        yield running
