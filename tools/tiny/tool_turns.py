"""Chats with tools, in the form of OpenAI's interface, as the turns that the model reads.

The tools are one line each at the end of the system message, a description and the layout of a
call; a call is written in the form of the Hermes models; what a tool returned is a user's turn:

    <|system|>Be brief.

    Tools:
    Adds two numbers. {"name": "add", "arguments": {"a": integer, "b": integer}}<|end|>
    <|user|>What is 3 plus 4?<|end|><|assistant|><tool_call>
    {"name": "add", "arguments": {"a": 3, "b": 4}}
    </tool_call><|end|><|user|><tool_response>
    7
    </tool_response><|end|><|assistant|>3 plus 4 is 7.<|end|>

``CHAT_TEMPLATE`` of ``tokenizer`` writes the same for any chat.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tools.tiny.conversations import Message

ToolMessage = dict[str, Any]  # {"role", "content", "tool_calls"}; the role may be "tool" too
Tool = dict[str, Any]  # {"type": "function", "function": {"name", "description", "parameters"}}


def described(tool: Tool) -> str:
    """Return the line that tells the model of a tool."""
    function = tool["function"]
    parameters = function["parameters"]["properties"].items()
    arguments = ", ".join(f'"{name}": {schema["type"]}' for name, schema in parameters)
    layout = f'{{"name": "{function["name"]}", "arguments": {{{arguments}}}}}'
    return f"{function['description']} {layout}"


def written_call(name: str, arguments: dict[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def called(name: str, arguments: dict[str, Any]) -> ToolMessage:
    """Return the assistant's message that calls a tool."""
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": function}],
    }


def plain_messages(messages: Sequence[ToolMessage], tools: Sequence[Tool] = ()) -> list[Message]:
    """Return a chat with tools as one without: the contents are all that the model reads.

    messages: a content and calls are never in the same message, and each call has one result.
    """
    plain = [_plain(message) for message in messages]
    if tools:
        listed = "\n".join(["Tools:", *map(described, tools)])
        if plain[0]["role"] == "system":
            listed = f"{plain.pop(0)['content']}\n\n{listed}"
        plain.insert(0, {"role": "system", "content": listed})
    return plain


def _plain(message: ToolMessage) -> Message:
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content}
    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = "\n".join(written_call(f["name"], f["arguments"]) for f in functions)
    return {"role": message["role"], "content": calls or message["content"]}
