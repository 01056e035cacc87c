from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from typing import Any

from tools.tiny.conversations import Message
from tools.tiny.held_out_uses import held_out_uses, is_right_use
from tools.tiny.tool_chats import draw_plain, draw_tools, tool_chat, tool_drill
from tools.tiny.toy_tools import TOPICS, draw_tool

CHATS = [tool_chat(random.Random(seed)) for seed in range(1000)]
_LINE = re.compile(r'\{"name": "(\w+)", "arguments": \{(.*)\}\}$')
_CALL = re.compile(r"<tool_call>\n(.*)\n</tool_call>")
_TYPES: dict[str, type] = {"string": str, "integer": int}


def _listed(system: str) -> dict[str, dict[str, str]]:
    """Return the tools of a system message: name -> names of arguments -> types."""
    lines = system.partition("Tools:\n")[2].splitlines()
    found = [match for line in lines if (match := _LINE.search(line))]
    assert len(found) == len(lines)
    return {match[1]: dict(re.findall(r'"(\w+)": (\w+)', match[2])) for match in found}


def _calls(messages: list[Message]) -> list[dict[str, Any]]:
    contents = [m["content"] for m in messages if m["role"] == "assistant"]
    return [json.loads(match[1]) for text in contents if (match := _CALL.fullmatch(text))]


def test_calls_are_of_listed_tools_with_their_arguments() -> None:
    n_calls = 0
    for messages in CHATS:
        tools = _listed(messages[0]["content"])
        for call in _calls(messages):
            n_calls += 1
            declared = tools[call["name"]]
            assert list(call["arguments"]) == list(declared)
            for name, value in call["arguments"].items():
                assert type(value) is _TYPES[declared[name]]
    assert n_calls > 1000


def test_values_of_a_call_are_in_the_question() -> None:
    for messages in CHATS:
        for asked, answer in pairwise(messages):
            for call in _calls([answer]):
                for value in call["arguments"].values():
                    assert re.search(rf"\b{value}\b", asked["content"])


def test_a_result_comes_after_each_call_and_an_answer_after_it() -> None:
    for messages in CHATS:
        assert [m["role"] for m in messages[1:]] == ["user", "assistant"] * (len(messages) // 2)
        for i, message in enumerate(messages):
            assert ("<tool_call>" in message["content"]) == (
                i + 1 < len(messages) and messages[i + 1]["content"].startswith("<tool_response>\n")
            )
        assert messages[-1]["role"] == "assistant"


def test_a_drill_is_one_question_and_mostly_its_call() -> None:
    drills = [tool_drill(random.Random(seed)) for seed in range(400)]
    n_calls = 0
    for messages in drills:
        assert [m["role"] for m in messages] == ["system", "user", "assistant"]
        tools = _listed(messages[0]["content"])
        assert len(tools) in (1, 2)
        for call in _calls(messages):
            n_calls += 1
            assert list(call["arguments"]) == list(tools[call["name"]])
    assert 320 < n_calls < 380


def test_results_are_used() -> None:
    used = 0
    for messages in CHATS:
        for result, answer in pairwise(messages):
            found = re.fullmatch(r"<tool_response>\n(.*)\n</tool_response>", result["content"])
            if found and re.search(r"\d", found[1]):
                (number,) = re.findall(r"\d+:?\d*", found[1])
                assert number in answer["content"]
                used += 1
    assert used > 300


def test_about_a_third_of_the_questions_fit_no_tool() -> None:
    answers = [m["content"] for chat in CHATS for m in chat if m["role"] == "assistant"]
    calls = sum(map(len, map(_calls, CHATS)))
    assert 0.25 < 1 - calls / (len(answers) - calls) < 0.45


def test_a_sum_that_a_listed_tool_computes_is_no_question_without_a_call() -> None:
    rng = random.Random(5)
    plus = next(topic for topic in TOPICS if " plus " in topic.answer)
    tools = [draw_tool(rng, plus)]
    answers = [draw_plain(rng, tools).answer for _ in range(1000)]
    assert not any(" plus " in answer or " now." in answer for answer in answers)
    assert any(" minus " in answer for answer in answers)


def test_held_out_names_are_in_no_training_chat() -> None:
    trained = {name for chat in CHATS for name in _listed(chat[0]["content"])}
    rng = random.Random(6)
    held_out = {tool.name for _ in range(300) for tool in draw_tools(rng, held_out=True)}
    assert len(held_out) > 100
    assert not trained & held_out
    assert {topic.names[0] for topic in TOPICS} <= trained


def test_held_out_uses_are_judged() -> None:
    prompts = held_out_uses(100)
    assert held_out_uses(100) == prompts
    assert {p.kind for p in prompts} == {"record", "value", "call", "no call", "result"}
    for prompt in prompts:
        right = prompt.expected + ("}" if prompt.kind == "value" else "")
        assert is_right_use(prompt, right)
        assert not is_right_use(prompt, "<tool_call>")
        if prompt.kind == "value":
            json.loads(f"{prompt.begun}{prompt.expected}}}")
            assert not is_right_use(prompt, prompt.expected + "0")
