"""Programs with mistakes that type checkers must find, and with right lines that they must accept.

A program is its text and the numbers of the lines with a mistake.
"""

from __future__ import annotations

__all__ = ["OPTIONS", "RESULTS", "Program"]

Program = tuple[str, list[int]]

OPTIONS: Program = (
    """\
from pybatcher import Batcher, BlockingBatcher, BlockingClient, Engine, EngineConfig
from pybatcher.ray import deployment
from pybatcher.testing import fake_batcher
Batcher("m", n_ctx="auto", dtype="int8", step_timeout=None, system_prompt="s")
BlockingBatcher(n_parallel=4, on_failure=print)
deployment(n_ctx=512, system_prompt="s")
EngineConfig(device="cuda", block_size=64, dtype="q4_k_m")
BlockingClient().reload(model="m", n_ctx=512, system_prompt=None)
Batcher(n_ctxx=5)
Batcher(n_ctx=5.5)
Batcher.from_torch(None, n_ctxx=5)
BlockingBatcher(n_ctxx=5)
BlockingBatcher.from_torch(None, temperature=1.0)
fake_batcher(n_paralel=5)
deployment(n_ctxx=5)
Batcher(dtype="int7")
Batcher(kv_dtype="q8_0")
Batcher(device="gpu")
Batcher(victim_policy="oldest")
Batcher(block_size=48)
Engine.load(dtype="int7")
BlockingClient().reload(n_ctxx=5)
BlockingClient().reload(kv_dtype="q8_0")
""",
    list(range(9, 24)),
)

_SURFACES = {
    "AnyBatcher": "await b.{}",
    "Batcher": "await b.{}",
    "Client": "await b.{}",
    "BlockingBatcher": "b.{}",
    "BlockingClient": "b.{}",
    "ThreadsafeBatcher": "b.{}.result()",
}
_HEAD = f"""\
from dataclasses import dataclass
from typing import TypeVar
from pybatcher import Completion, {", ".join(_SURFACES)}

T = TypeVar("T")

def end(completion: Completion[T] | None) -> Completion[T]:
    assert completion is not None
    return completion

@dataclass
class Person:
    name: str
"""
# A call, the use of its result, and whether that is right.
_CALLS = [
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
    ("act([], [print], json_schema=Person)", ".completion.parsed.name.upper()", True),
    ("act([], [print], json_schema=Person)", "[0].parsed.nmae", False),
    ("act([], [print])", ".messages[0]['role']", True),
    ('trim([{"role": "user"}], 5)', "[0]['role'].upper()", True),
    ('trim([{"role": "user"}], 5)', "[0]['role'].uper()", False),
]
# A map, the use of a result, and whether that is right.
_MAPS = [
    ('map(["a"], json_schema=Person)', ".result().parsed.name.upper()", True),
    ('map(["a"], json_schema=Person)', ".result().parsed.nmae", False),
    ('map(["a"])', ".item.upper()", True),
    ('map(["a"])', ".item.uper()", False),
    ("map([(1, 2)], json_schema=list[int])", ".result().parsed[0].bit_length()", True),
    ('map(["a"])', ".completion.text", False),  # there may be an error instead
]
# A stream, the use of its completion, and whether that is right.
_STREAMS = [
    ('stream("a", json_schema=Person, output=[1])', ".parsed.name.upper()", True),
    ('stream("a", json_schema=Person)', ".parsed.nmae", False),
    ("stream_chat([], json_schema=list[int], tools=[print])", ".parsed[0].bit_length()", True),
    ("stream_chat([], json_schema=list[int])", ".parsed[0].lower()", False),
    ('stream("a", json_schema={"type": "object"})', '.parsed["any"]["thing"]', True),
    ('stream("a", json_schema=Person, prompt_logprobs=1)', "", False),
    ('stream("a", max_tokens=5)', ".parsed.anything", True),
]


def _results() -> Program:
    lines, wrong = _HEAD.splitlines(), []
    for surface, how in _SURFACES.items():
        uses = [(f"({how.format(call)}){use}", is_right) for call, use, is_right in _CALLS]
        uses += [(f"end(b.{call}.completion){use}", is_right) for call, use, is_right in _STREAMS]
        following = "await anext(b.{})" if how.startswith("await") else "next(b.{})"
        uses += [(f"({following.format(call)}){use}", is_right) for call, use, is_right in _MAPS]
        for i, (use, is_right) in enumerate(uses):
            lines.append(f"async def {surface}_{i}(b: {surface}) -> None:")
            lines.append(f"    plain: Completion | object = {use}")
            if not is_right:
                wrong.append(len(lines))
    return "\n".join(lines) + "\n", wrong


RESULTS = _results()
