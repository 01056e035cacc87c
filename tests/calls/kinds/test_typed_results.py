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
HEAD = (
    f"from dataclasses import dataclass\nfrom pybatcher import Completion, {', '.join(SURFACES)}\n"
)
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


@pytest.mark.slow
def test_type_checkers_know_the_type_of_a_parsed_output() -> None:
    lines = [*HEAD.splitlines(), "@dataclass", "class Person:", "    name: str"]
    wrong = []
    for surface, how in SURFACES.items():
        for i, (call, use, is_right) in enumerate(CALLS):
            lines.append(f"async def {surface}_{i}(b: {surface}) -> None:")
            lines.append(f"    plain: Completion | object = ({how.format(call)}){use}")
            if not is_right:
                wrong.append(len(lines))
    told = {int(error.split(":")[0]) for error in type_errors("\n".join(lines) + "\n")}
    assert sorted(told) == wrong
