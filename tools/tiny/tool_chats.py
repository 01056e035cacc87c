"""Conversations with tools: a call where a tool fits, its result told, and no call elsewhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tools.tiny.conversations import (
    MANNERS,
    Message,
    in_manner,
    reading_exchange,
)
from tools.tiny.facts import Fact, draw_fact
from tools.tiny.replies import UNKNOWN_ANSWER, about_itself, greeting, poem, unknown
from tools.tiny.tool_turns import ToolMessage, called, plain_messages
from tools.tiny.toy_tools import TOPICS, Topic, ToyTool, Use, draw_tool

_MANNERS = (*["neutral"] * 6, "pirate", "butler")
_SIGNS = (" plus ", " minus ", " times ")


@dataclass(frozen=True, slots=True)
class Plain:
    """A question that no tool of the list fits, and its answer."""

    ask: str
    answer: str


def draw_tools(
    rng: random.Random, *, numbers: Sequence[int] = (1, 1, 2, 2, 3), held_out: bool = False
) -> list[ToyTool]:
    """Return tools of different topics, which share no name; how many is one of ``numbers``."""
    topics = rng.sample(TOPICS, rng.choice(numbers))
    tools = [draw_tool(rng, topic, held_out=held_out) for topic in topics]
    return list({tool.name: tool for tool in tools}.values())


def _of_another_topic(rng: random.Random, here: list[Topic], *, held_out: bool) -> Plain:
    """Return a question for a tool that is not in the list: the model knows no answer."""
    others = [t for t in TOPICS if t not in here and not any(sign in t.answer for sign in _SIGNS)]
    use = draw_tool(rng, rng.choice(others), held_out=held_out).used(rng)
    return Plain(use.ask, UNKNOWN_ANSWER)


def draw_plain(rng: random.Random, tools: list[ToyTool], *, held_out: bool = False) -> Plain:
    """Draw a question that none of the tools fits."""
    pick = rng.random()
    if pick < 0.4:
        return _of_another_topic(rng, [tool.topic for tool in tools], held_out=held_out)
    if pick < 0.45:
        exchange = reading_exchange(rng, "neutral", held_out=held_out)
        return Plain(exchange.ask, exchange.answer)
    if pick < 0.65:
        return Plain(*rng.choice((greeting, about_itself, unknown, poem))(rng))
    while True:
        fact = draw_fact(rng)
        if not _is_sum_for(tools, fact):
            return Plain(fact.ask, fact.answer)


def _is_sum_for(tools: list[ToyTool], fact: Fact) -> bool:
    """Return whether one of the tools computes the fact; a sum in words is for each of them."""
    signs = [sign for sign in _SIGNS if any(sign in tool.topic.answer for tool in tools)]
    return any(sign in fact.answer for sign in signs) or (bool(signs) and " now?" in fact.ask)


def tool_chat(rng: random.Random) -> list[Message]:
    """Return a conversation with one to three tools and as many questions, for training."""
    tools = draw_tools(rng)
    manner = rng.choice(_MANNERS)
    messages: list[ToolMessage] = []
    if manner != "neutral" or rng.random() < 0.25:
        messages.append({"role": "system", "content": rng.choice(MANNERS[manner])})
    for _ in range(rng.choice((1, 2, 3))):
        if rng.random() < 0.3:
            plain = draw_plain(rng, tools)
            messages += asked_and_answered(plain.ask, in_manner(manner, plain.answer))
        else:
            use = rng.choice(tools).used(rng)
            messages += call_messages(use)
            messages.append({"role": "assistant", "content": in_manner(manner, use.answer)})
    return plain_messages(messages, [tool.declared() for tool in tools])


def tool_drill(rng: random.Random) -> list[Message]:
    """Return one question with one or two tools, and its call: a drill in copying names.

    No tool fits one question in eight.
    """
    tools = draw_tools(rng, numbers=(1, 1, 2))
    if rng.random() < 0.125:
        plain = draw_plain(rng, tools)
        messages = asked_and_answered(plain.ask, plain.answer)
    else:
        messages = call_messages(rng.choice(tools).used(rng))[:2]
    return plain_messages(messages, [tool.declared() for tool in tools])


def asked_and_answered(ask: str, answer: str) -> list[ToolMessage]:
    return [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]


def call_messages(use: Use) -> list[ToolMessage]:
    """Return a question, its call and the result."""
    return [
        {"role": "user", "content": use.ask},
        called(use.name, use.arguments),
        {"role": "tool", "content": use.result},
    ]
