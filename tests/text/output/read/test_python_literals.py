from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybatcher.text.output.read.python_literals import python_value
from pybatcher.text.output.read.source import MalformedCallError

plain: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False,
              allow_infinity=False), st.text(st.characters(exclude_categories=["Cs"]))),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=12,
)  # fmt: skip


@given(plain)
def test_what_python_writes_reads_back(value: Any) -> None:
    assert python_value(f" {value!r}\n") == ast.literal_eval(repr(value)) == value


@pytest.mark.parametrize("text", ["", "x", "[1", "1 2", "f()", "{1: 2}", "[" * 99 + "]" * 99])
def test_what_is_no_literal(text: str) -> None:
    with pytest.raises(MalformedCallError):
        python_value(text)
