"""Real chat templates, which `make test-templates` downloads, and conversations to render."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pybatcher.errors import InvalidRequestError, ModelFormatError
from pybatcher.text import ChatTemplate
from pybatcher.text.output import ResponseFormat, format_of

FOLDER = os.environ.get("PYBATCHER_TEMPLATES", "")
TEMPLATES = {path.stem: path for path in sorted(Path(FOLDER or os.devnull).glob("*/*.jinja"))}
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def _tool(name: str, required: list[str], **properties: str) -> dict[str, Any]:
    schemas = {
        key: {"type": kind, "description": f"Its <{key}>."} for key, kind in properties.items()
    }
    if "tags" in schemas:
        schemas["tags"]["items"] = {"type": "string"}  # type: ignore[assignment]
    parameters = {"type": "object", "properties": schemas, "required": required}
    function = {"name": name, "description": "It's a tool & more.", "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    _tool("get_weather", ["city", "days"], city="string", days="integer"),
    _tool("run", ["code"], check="boolean", code="string", tags="array"),
]


def _call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER = ("get_weather", {"city": "Paris <é>", "days": 3})
RUN = ("run", {"check": True, "code": 'if a < b:\n  print("x")', "tags": ["x", "y"]})
CALLS = [_call("abcdefgh1", *WEATHER), _call("abcdefgh2", *RUN)]
USER = {"role": "user", "content": "Sun or rain?"}

# What a model says, as the message that a caller would send back.
CONTENT, REASONING = "Let me see.", "Hm, <b>."
TURNS: dict[str, dict[str, Any]] = {
    "content": {"role": "assistant", "content": CONTENT},
    "call": {"role": "assistant", "content": "", "tool_calls": CALLS[:1]},
    "calls": {"role": "assistant", "content": "", "tool_calls": CALLS},
    "content and call": {"role": "assistant", "content": CONTENT, "tool_calls": CALLS[:1]},
    "reasoning": {"role": "assistant", "content": CONTENT, "reasoning_content": REASONING},
    "reasoning and calls": {
        "role": "assistant",
        "content": "",
        "reasoning_content": REASONING,
        "tool_calls": CALLS,
    },
    "all": {
        "role": "assistant",
        "content": CONTENT,
        "reasoning_content": REASONING,
        "tool_calls": CALLS[:1],
    },
}


@dataclass(frozen=True)
class Turn:
    """A turn of an assistant as a template writes it, without what begins and ends it.

    prefill: what the prompt writes of it already, where the model would go on.
    """

    text: str
    prompt: str
    prefill: str


# What begins an assistant's turn, and what ends it.
_HEADERS = [
    *("<|im_start|>assistant\n", "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    *("<|header_start|>assistant<|header_end|>\n\n", "[/INST]", "<start_of_turn>model\n"),
    *("<start_of_turn>model", "<|turn>model\n", "<|start_of_role|>assistant<|end_of_role|>"),
    *("<\uff5cAssistant\uff5c>", "<seed:bos>assistant\n", "<|start|>assistant", "<|assistant|>"),
    *("<|assistant_start|>", "<assistant>", "<SPECIAL_11>Assistant\n", "assistant:", "<|Bot|>"),
    *("<role>ASSISTANT</role>", "ai name=assistant\n", "<|begin_assistant|>\n"),
    *(
        "### Response:\n",
        "<#bot#>\n",
        "<|extra_0|>\u52a9\u624b\uff1a",
        "ASSISTANT:\n",
        "<|extra_0|>",
    ),
    *("Assistant:", "Falcon:", "\u7b54\uff1a", "<_bot>"),
]
_ENDS = [
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "</s>", "<end_of_turn>", "<turn|>", "<|end|>"),
    *("<|tool_response>", "<|end_of_text|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<sep>"),
    *("<seed:eos>", "<SPECIAL_12>", "<|role_end|>", "</assistant>", "<|eot|>", "<|eos|>"),
    *("<end_of_sentence>", "<|assistant_end|>", "<|endoftext|>"),
]


@cache
def chat_template(name: str) -> ChatTemplate:
    return ChatTemplate(_source(name), special_tokens=SPECIAL_TOKENS)


def response_format(name: str) -> ResponseFormat:
    return format_of(_source(name))


@cache
def _source(name: str) -> str:
    return TEMPLATES[name].read_text()


def turn_of(name: str, message: dict[str, Any]) -> Turn | None:
    """The turn of a message; None where the template refuses it."""
    template = chat_template(name)
    try:
        prompt = template.render([USER], tools=TOOLS)
        text = template.render([USER, message], tools=TOOLS, add_generation_prompt=False)
    except (InvalidRequestError, ModelFormatError):
        return None
    ends = [end for end in _ENDS if end != "<|end|>" or not response_format(name).harmony]
    begin = _turn_begin(text)
    places = [at for end in ends if (at := text.find(end, begin)) >= 0]
    return Turn(text[begin : min(places, default=len(text))], prompt, prompt[_turn_begin(prompt) :])


def _turn_begin(text: str) -> int:
    """Where the first turn of an assistant after the question begins."""
    question = text.rindex(USER["content"]) + len(USER["content"])
    found = [(at, len(one)) for one in _HEADERS if (at := text.find(one, question)) >= 0]
    at, length = max(found, key=lambda one: (-one[0], one[1]), default=(question, 0))
    return at + length


def with_json_texts(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the arguments of calls as JSON texts, which OpenAI's API sends."""
    copied: list[dict[str, Any]] = json.loads(json.dumps(messages))
    for message in copied:
        for call in message.get("tool_calls", []):
            function = call["function"]
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
    return copied
