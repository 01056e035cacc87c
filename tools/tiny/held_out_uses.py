"""Held-out prompts for JSON and for tools, and the judge of the answers to them.

record     an object whose keys the question tells: the whole answer is determined
value      an object up to the colon of a key, as a form forces it: its value is to come
call       a question that one of the tools fits, all with names that training never had
no call    a question that none of the tools fits
result     a question, its call and the result: the answer to the user is to come
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.tiny.conversations import Message
from tools.tiny.records import draw_filling
from tools.tiny.tool_chats import call_messages, draw_plain, draw_tools
from tools.tiny.tool_turns import ToolMessage, plain_messages, written_call
from tools.tiny.toy_tools import ToyTool

USES_SEED = 11


@dataclass(frozen=True, slots=True)
class UsePrompt:
    """``messages`` and what of the answer is there already; ``expected``: the rest of the answer.

    Of a value ``expected`` is its JSON, with which the answer begins.
    """

    kind: str
    messages: tuple[Message, ...]
    expected: str
    begun: str = ""


def _record(rng: random.Random) -> UsePrompt:
    while True:
        filling = draw_filling(rng, held_out=True)
        if filling.told:
            return UsePrompt("record", _asked(filling.ask), filling.answer)


def _value(rng: random.Random) -> UsePrompt:
    while True:
        filling = draw_filling(rng, held_out=True)
        if filling.told:
            continue
        last = rng.randrange(len(filling.value))
        before = list(filling.value.items())[: last + 1]
        key, value = before.pop()
        begun = json.dumps({**dict(before), key: 0}, ensure_ascii=False).removesuffix(" 0}")
        expected = " " + json.dumps(value, ensure_ascii=False)
        return UsePrompt("value", _asked(filling.ask), expected, begun)


def _call(rng: random.Random) -> UsePrompt:
    tools = draw_tools(rng, held_out=True)
    use = rng.choice(tools).used(rng)
    messages = _with_tools([{"role": "user", "content": use.ask}], tools)
    return UsePrompt("call", messages, written_call(use.name, use.arguments))


def _no_call(rng: random.Random) -> UsePrompt:
    tools = draw_tools(rng, held_out=True)
    plain = draw_plain(rng, tools, held_out=True)
    messages = _with_tools([{"role": "user", "content": plain.ask}], tools)
    return UsePrompt("no call", messages, plain.answer)


def _result(rng: random.Random) -> UsePrompt:
    tools = draw_tools(rng, held_out=True)
    use = rng.choice(tools).used(rng)
    return UsePrompt("result", _with_tools(call_messages(use), tools), use.answer)


def _asked(ask: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": ask},)


def _with_tools(messages: Sequence[ToolMessage], tools: list[ToyTool]) -> tuple[Message, ...]:
    return tuple(plain_messages(messages, [tool.declared() for tool in tools]))


_MAKERS: tuple[Callable[[random.Random], UsePrompt], ...] = (
    _record,
    _value,
    _call,
    _no_call,
    _result,
)


def held_out_uses(n: int, seed: int = USES_SEED) -> list[UsePrompt]:
    """Return ``n`` prompts that are not in training, of every kind in turn."""
    rng = random.Random(seed)
    return [_MAKERS[i % len(_MAKERS)](rng) for i in range(n)]


def is_right_use(prompt: UsePrompt, answer: str) -> bool:
    """Return whether a whole answer is as taught; of "no call": whether it calls no tool."""
    if prompt.kind == "value":
        rest = answer.removeprefix(prompt.expected)
        return answer.startswith(prompt.expected) and rest[:1] in (",", "}")
    if prompt.kind == "no call":
        return "<tool_call>" not in answer
    return answer == prompt.expected
