"""The type of `parsed` is that of `json_schema`, for a type checker."""

from __future__ import annotations

import pytest
from type_check import type_errors

SURFACES = {
    "AnyBatcher": "await b.{}",
    "Batcher": "await b.{}",
    "Client": "await b.{}",
    "BlockingBatcher": "b.{}",
    "BlockingClient": "b.{}",
    "ThreadsafeBatcher": "b.{}.result()",
}
HEAD = f"""\
from dataclasses import dataclass
from typing import TypeVar
from pybatcher import Completion, {", ".join(SURFACES)}

T = TypeVar("T")

def end(completion: Completion[T] | None) -> Completion[T]:
    assert completion is not None
    return completion

@dataclass
class Person:
    name: str
"""
# A call, the use of its result, and whether that is right.
CALLS = [
    ('generate("a", json_schema=Person, max_tokens=5)', ".parsed.name.upper()", True),
    ('generate("a", json_schema=Person)', ".parsed.nmae", False),
    ('generate(["a"], json_schema=Person)', "[0].parsed.name.upper()", True),
    ('generate(["a"], json_schema=Person)', "[0].parsed.nmae", False),
    ("chat([], None, json_schema=Person, tools=[print])", ".parsed.name.upper()", True),
    ("chat([], json_schema=Person)", ".choices[0].parsed.nmae", False),
    ("chat([], json_schema=list[int])", ".parsed[0].bit_length()", True),
    ("chat([], json_schema=list[int])", ".parsed[0].lower()", False),
    ('generate("a", json_schema={"type": "object"})', '.parsed["any"]["thing"]', True),
    ('generate("a", json_schema=Person, max_tokes=5)', "", False),
    ("chat([], json_schema='{}')", ".parsed.anything", True),
]
# A stream, the use of its completion, and whether that is right.
STREAMS = [
    ('stream("a", json_schema=Person, output=[1])', ".parsed.name.upper()", True),
    ('stream("a", json_schema=Person)', ".parsed.nmae", False),
    ("stream_chat([], json_schema=list[int], tools=[print])", ".parsed[0].bit_length()", True),
    ("stream_chat([], json_schema=list[int])", ".parsed[0].lower()", False),
    ('stream("a", json_schema={"type": "object"})', '.parsed["any"]["thing"]', True),
    ('stream("a", json_schema=Person, prompt_logprobs=1)', "", False),
    ('stream("a", max_tokens=5)', ".parsed.anything", True),
]


@pytest.mark.slow
def test_type_checkers_know_the_type_of_a_parsed_output() -> None:
    lines, wrong = HEAD.splitlines(), []
    for surface, how in SURFACES.items():
        uses = [(f"({how.format(call)}){use}", is_right) for call, use, is_right in CALLS]
        uses += [(f"end(b.{call}.completion){use}", is_right) for call, use, is_right in STREAMS]
        for i, (use, is_right) in enumerate(uses):
            lines.append(f"async def {surface}_{i}(b: {surface}) -> None:")
            lines.append(f"    plain: Completion | object = {use}")
            if not is_right:
                wrong.append(len(lines))
    told = {int(error.split(":")[0]) for error in type_errors("\n".join(lines) + "\n")}
    assert sorted(told) == wrong
