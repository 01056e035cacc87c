"""The chat template of the shipped model: plain chats as ever, tools as training reads them."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from pybatcher.text.output.formats.format_of import format_of
from pybatcher.text.output.read.parser import parse_response
from pybatcher.text.sandbox import Sandbox
from tools.tiny import tool_chats
from tools.tiny.grammar import documents
from tools.tiny.tokenizer import CHAT_TEMPLATE, as_text
from tools.tiny.tool_turns import Tool, ToolMessage, plain_messages

ADD: Tool = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        },
    },
}
USER = {"role": "user", "content": "What is 3 plus 4?"}
TEMPLATE = Sandbox(CHAT_TEMPLATE)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 3, "b": 4}}\n</tool_call>'


def rendered(messages: Any, tools: Any = None, *, prompt: bool = False) -> str:
    variables = {"bos_token": "<|begin|>", "tools": tools, "add_generation_prompt": prompt}
    return TEMPLATE.render({**variables, "messages": messages})


def call(arguments: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "add", "arguments": arguments}}


def test_plain_chats_are_turns_between_special_tokens() -> None:
    for document in itertools.islice(documents(), 200):
        if not isinstance(document, str):
            assert rendered(document) == as_text(document)
            assert rendered(document, prompt=True) == as_text(document) + "<|assistant|>"
            assert rendered(document, []) == as_text(document)


def test_chats_with_tools_are_what_training_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[ToolMessage], list[Tool]]] = []

    def noted(messages: list[ToolMessage], tools: list[Tool]) -> Any:
        seen.append((messages, tools))
        return plain_messages(messages, tools)

    monkeypatch.setattr(tool_chats, "plain_messages", noted)
    rng = random.Random(1)
    for _ in range(200):
        text = as_text(tool_chats.tool_chat(rng))
        assert rendered(*seen[-1]) == text


def test_tools_stand_behind_the_system_message() -> None:
    line = 'Tools:\nAdds two numbers. {"name": "add", "arguments": {"a": integer, "b": integer}}'
    turn = "<|user|>What is 3 plus 4?<|end|>"
    assert rendered([USER], [ADD]) == f"<|begin|><|system|>{line}<|end|>{turn}"
    system = {"role": "system", "content": " Be brief. "}
    expected = f"<|begin|><|system|>Be brief.\n\n{line}<|end|>{turn}"
    assert rendered([system, USER], [ADD]) == expected


def test_tools_may_lack_what_is_optional() -> None:
    nothing = {"name": "look", "description": None}
    odd = {
        "name": "put",
        "parameters": {"properties": {"x": {"anyOf": []}, "y": {"type": "number"}}},
    }
    assert rendered([USER], [nothing, {"type": "function", "function": odd}]).startswith(
        '<|begin|><|system|>Tools:\n{"name": "look", "arguments": {}}\n'
        '{"name": "put", "arguments": {"x": any, "y": number}}<|end|>'
    )


@pytest.mark.parametrize("arguments", [{"a": 3, "b": 4}, '{"a": 3, "b": 4}'])
@pytest.mark.parametrize("content", [None, ""])
def test_calls_are_rendered_as_they_were_drawn(arguments: object, content: str | None) -> None:
    message = {"role": "assistant", "content": content, "tool_calls": [call(arguments)]}
    assert rendered([message]) == f"<|begin|><|assistant|>{CALL}<|end|>"


def test_several_calls_and_their_results_are_one_turn_each() -> None:
    said = {"role": "assistant", "content": "Let me see.", "tool_calls": [call({"a": 1})] * 2}
    results = [{"role": "tool", "content": " 7 ", "tool_call_id": str(i)} for i in range(2)]
    one = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    result = "<tool_response>\n7\n</tool_response>"
    assert rendered([said, *results, USER]) == (
        f"<|begin|><|assistant|>Let me see.\n{one}\n{one}<|end|>"
        f"<|user|>{result}\n{result}<|end|><|user|>What is 3 plus 4?<|end|>"
    )


def test_the_format_is_recognised_and_read() -> None:
    form = format_of(CHAT_TEMPLATE, "llama")
    assert form.name == "hermes"
    response = parse_response(CALL, form)
    (parsed,) = response.tool_calls
    assert (parsed.name, parsed.arguments) == ("add", {"a": 3, "b": 4})
    assert response.content == ""
