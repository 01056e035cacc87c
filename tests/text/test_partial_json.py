"""The value of a JSON text that is cut anywhere."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybatcher import partial_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def grows_to(before: Any, after: Any) -> bool:
    """True if `after` has all of `before`, and perhaps more."""
    if before is None:
        return True
    if isinstance(before, str):
        return isinstance(after, str) and after.startswith(before)
    if isinstance(before, list):
        is_there = isinstance(after, list) and len(after) >= len(before)
        return is_there and all(map(grows_to, before, after))
    if isinstance(before, dict):
        return isinstance(after, dict) and all(
            name in after and grows_to(value, after[name]) for name, value in before.items()
        )
    return bool(before == after)


@given(VALUES.filter(lambda v: isinstance(v, (list, dict, str))), st.booleans())
def test_at_every_cut_it_is_a_part_of_the_whole(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    values = [partial_json(text[:cut]) for cut in range(len(text) + 1)]
    assert values[0] is None
    assert values[-1] == value
    for before, after in itertools.pairwise(values):
        assert grows_to(before, after), (before, after)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{", {}),
        ('{"na', {}),
        ('{"name"', {}),
        ('{"name": ', {}),
        ('{"name": "', {"name": ""}),
        ('{"name": "A\\', {"name": "A"}),
        ('{"name": "A\\\\', {"name": "A\\"}),
        ('{"name": "A\\u00e', {"name": "A"}),
        ('{"name": "\\ud83d', {"name": ""}),
        ('{"name": "\\ud83d\\ude00', {"name": "😀"}),
        ("[1, 2", [1]),
        ("[1, 2,", [1, 2]),
        ("[tru", []),
        ("[true", [True]),
        ('[{"a": [', [{"a": []}]),
        ("12", None),
        ("]", None),
        ("nonsense", None),
        ("[" * 100_000, None),
    ],
)
def test_what_is_certain_is_told(text: str, value: Any) -> None:
    assert partial_json(text) == value
