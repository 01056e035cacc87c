"""The keywords of calls, for a type checker: a misspelt one, or one of a wrong type, is an error.

On every surface, of every call that takes keywords. One program asks for all; each of its calls
has a line of its own.
"""

from __future__ import annotations

from functools import cache
from inspect import signature

import pytest
from type_check import type_errors

from pybatcher.calls.any_batcher import AnyBatcher

SURFACES = ["AnyBatcher", "Batcher", "Client", "BlockingBatcher", "BlockingClient"]
SURFACES += ["ThreadsafeBatcher"]
# Of each call: what is handed in, keywords that are right, a misspelt one, one of a wrong type.
CALLS = {
    "generate": ('"a"', "max_tokens=3, output=[1]", "max_tokes=3", 'max_tokens="x"'),
    "generate of a list": ('["a"]', "max_tokens=3, timeout=1.5", "max_tokes=3", 'max_tokens="x"'),
    "generate of token ids": ("[(1, 2), (3,)]", "seed=1", "sead=3", 'max_tokens="x"'),
    "stream": ('"a"', "stop=['.'], namespace=None", "stpo='.'", "stop=3"),
    "chat": ("[{'role': 'user'}]", "seed=None, n=2", "sead=3", "seed='x'"),
    "chat with tools": (
        "[{'role': 'user'}]",
        "tools=[print], tool_choice={'name': 'print'}, max_reasoning_tokens=5",
        "tool_choise='auto'",
        "enable_thinking='x'",
    ),
    "tokenize": ("[{'role': 'user'}]", "reasoning_effort='low'", "efort='low'", "tools=3"),
    "stream_chat": ("[{'role': 'user'}]", "top_p=0.5", "topp=0.5", "top_p='x'"),
    "score": ('"a", ["b"]', "priority=3, timeout=None", "prioriti=3", "priority='x'"),
    "embed": ('["a"]', 'pooling="mean", timeout=2.0', "poling='mean'", 'pooling="max"'),
    "embed of one text": ('"a"', 'pooling="cls"', "poling='mean'", 'pooling="max"'),
    "act": ("[{'role': 'user'}], [print]", "max_turns=3, top_p=0.5", "max_turn=3", "top_p='x'"),
    "act with a definition": (
        "[{'role': 'user'}], [({'name': 'a'}, print)]",
        "tool_choice='auto', timeout=None",
        "tools=[print]",
        "max_turns='x'",
    ),
    "map": (
        "['a', 'b']",
        "at_once=3, errors='raise', max_tokens=3, tools=[print]",
        "at_one=3",
        "errors='ignore'",
    ),
    "map of dicts": (
        "({'prompt': str(i)} for i in range(3))",
        "progress=lambda n, total: None, prompt_logprobs=True",
        "max_tokes=3",
        "progress=3",
    ),
    "trim": ("[{'role': 'user'}], 5", "tools=[print]", "tool=[print]", "tools=3"),
    "add_prefix": ('"a"', 'name="x", timeout=2.0', 'nam="x"', "name=3"),
    "add_prefix in time": ('"a"', 'namespace="y", timeout=None', "timeot=3", "timeout='x'"),
}


@cache
def checked() -> tuple[dict[int, tuple[str, str, str]], dict[int, list[str]]]:
    """Return what stands in each line (surface, call, kind), and the errors of each line."""
    lines = [f"from pybatcher import SamplingParams, {', '.join(SURFACES)}"]
    places: dict[int, tuple[str, str, str]] = {}
    for surface in SURFACES:
        lines.append(f"async def of_{surface}(one: {surface}) -> None:")
        for call, (content, *keywords) in CALLS.items():
            method = call.partition(" ")[0]
            for kind, options in zip(("right", "misspelt", "wrong type"), keywords, strict=True):
                lines.append(f"    one.{method}({content}, {options})")
                places[len(lines)] = (surface, call, kind)
    found: dict[int, list[str]] = {line: [] for line in places}
    for error in type_errors("\n".join(lines) + "\n"):
        line, _, message = error.partition(": ")
        if "[unused-coroutine]" not in message:
            found.setdefault(int(line), []).append(message)
    return places, found


@pytest.mark.slow
@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize("call", CALLS)
def test_a_keyword_that_is_none_is_an_error(surface: str, call: str) -> None:
    places, found = checked()
    own = {
        kind: found[line]
        for line, (of, name, kind) in places.items()
        if (of, name) == (surface, call)
    }
    assert own["right"] == []
    assert own["misspelt"], "a misspelt keyword was let through"
    assert own["wrong type"], "a wrong type was let through"


def test_nothing_else_in_the_program_is_wrong() -> None:
    places, found = checked()
    assert set(found) == set(places)


def test_every_call_with_keywords_is_looked_at() -> None:
    with_keywords = {
        name
        for name in dir(AnyBatcher)
        if not name.startswith("_")
        and callable(getattr(AnyBatcher, name))
        and "options" in signature(getattr(AnyBatcher, name)).parameters
    }
    assert with_keywords == {call.partition(" ")[0] for call in CALLS}
