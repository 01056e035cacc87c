"""Programs that a test starts, on Linux and with what Python lacks on macOS taken away."""

from __future__ import annotations

import os
import sys

import pytest
from as_on_macos import FOLDER


@pytest.fixture
def path_for_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs find what the test finds."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


@pytest.fixture(params=["Linux", "as on macOS"])
def system(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, path_for_doubles: None
) -> None:
    """Which system it is for programs."""
    if request.param == "as on macOS":
        monkeypatch.setenv("PYTHONPATH", FOLDER, prepend=os.pathsep)
