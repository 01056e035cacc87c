"""What all files of the wire have in common."""

from __future__ import annotations

import pytest

from pybatcher.sidecar.protocol import wire
from pybatcher.sidecar.protocol.wire_fields import ANSWERED, ASKED, short


def test_everything_that_goes_over_the_wire_has_a_way_back() -> None:
    names = set(wire.__all__)
    for name in names:
        if name.startswith("write_"):
            assert name.replace("write_", "read_") in names
        if name.endswith("_to_wire"):
            assert name.replace("_to_wire", "_from_wire") in names


@pytest.mark.parametrize(
    "value",
    [10**5000, "x" * 10**6, list(range(10**5)), {1: {2: {3: 4}}}],
    ids=["number", "text", "list", "map"],
)
def test_what_an_error_shows_is_short(value: object) -> None:
    assert 0 < len(short(value)) < 200


def test_what_cannot_be_shown_is_named() -> None:
    class Ugly:
        def __repr__(self) -> str:
            raise ValueError

    assert "Ugly" in short(Ugly())


def test_both_sides_raise_their_own_error_only() -> None:
    for fields in (ASKED, ANSWERED):
        for read in (
            fields.text,
            fields.flag,
            fields.whole,
            fields.items,
            fields.map,
            fields.plain,
        ):
            with pytest.raises(fields.error, match="x is"):
                read(object(), "x")
