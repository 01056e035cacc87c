"""The examples, and a sidecar for those that ask one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving_doubles import Serving, serving


@pytest.fixture(scope="session")
def examples() -> Path:
    """The folder."""
    return Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A real `pybatcher serve` with the model that ships inside."""
    with serving(tmp_path_factory.mktemp("sidecar")) as running:
        yield running
