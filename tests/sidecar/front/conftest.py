"""Programs that a test starts, on Linux and with what Python lacks on macOS taken away."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

AS_ON_MACOS = Path(__file__).parents[2] / "support" / "as_on_macos"


@pytest.fixture(params=["Linux", "as on macOS"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets PYTHONPATH for programs; they find there what the test finds, too."""
    first = [] if request.param == "Linux" else [str(AS_ON_MACOS)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*first, *sys.path]))
