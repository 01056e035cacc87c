"""The helper that other tests ask what a type checker says of a program."""

from __future__ import annotations

from type_check import type_errors

GOOD = """\
from pybatcher import Batcher, Completion

async def ask(batcher: Batcher) -> Completion:
    return await batcher.generate("Once upon a time")
"""


def test_a_program_that_is_right_has_no_errors() -> None:
    assert type_errors(GOOD) == []


def test_errors_come_with_their_lines() -> None:
    bad = GOOD + "\n\nhealth: int = Batcher().health()\nBatcher().helth()\n"
    first, second = type_errors(bad)
    assert first.startswith('7: Incompatible types in assignment (expression has type "Health"')
    assert second.startswith('8: "Batcher" has no attribute "helth"')


def test_it_is_strict() -> None:
    (error,) = type_errors("def f(x):\n    return x\n")
    assert error.startswith("1: Function is missing a type annotation")
