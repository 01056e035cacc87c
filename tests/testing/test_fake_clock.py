"""The fake clock advances only in `advance`."""

from __future__ import annotations

import pytest

from pybatcher.testing import FakeClock


def test_advance() -> None:
    clock = FakeClock(5.0)
    assert clock() == 5.0
    clock.advance(0.25)
    assert clock() == 5.25
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)
