"""The type of `parsed` is that of `json_schema`, for a type checker."""

from __future__ import annotations

import pytest
from type_check import type_errors
from typed_programs import RESULTS


@pytest.mark.slow
def test_mypy_knows_the_type_of_a_parsed_output() -> None:
    program, wrong = RESULTS
    assert sorted({int(error.split(":")[0]) for error in type_errors(program)}) == wrong
