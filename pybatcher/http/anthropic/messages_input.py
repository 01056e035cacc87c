"""The Messages API of Anthropic: bodies of requests, read as arguments of `chat`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..base.http_error import HttpError
from ..base.sampling_fields import as_recommended, bad
from .messages_conversation import read_turns, text_of

__all__ = ["Conversation", "MessagesAsked", "read_conversation", "read_request"]

_EAGER_BETA = "fine-grained-tool-streaming"
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty")
_THINKS = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}
# Templates know "low" and "high"; not all know "medium", which is what they do by themselves.
_EFFORTS = {"low": "low", "medium": None, "high": "high", "xhigh": "high", "max": "high"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages that a model is to read, as of `chat`, and the options of its template."""

    messages: list[dict[str, Any]]
    template: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MessagesAsked:
    """A request for a message: arguments of `chat`, and how the answer is to be told.

    options: of `chat`, those of the conversation's template among them.
    stops: the stop texts.
    eager: the tools whose input is streamed before it is known to be whole.
    """

    conversation: Conversation
    options: dict[str, Any]
    stream: bool
    stops: tuple[str, ...]
    eager: frozenset[str]


def read_request(body: Mapping[str, Any], betas: str = "") -> MessagesAsked:
    """Return what a body asks for. Unknown keys are ignored. Raises HttpError.

    Checked are the shapes that only this API has; all else is checked by the call.
    betas: the value of the header anthropic-beta.
    """
    conversation = read_conversation(body)
    if conversation.messages[-1]["role"] == "assistant":
        raise HttpError(
            400,
            "messages ends with an assistant's turn, which this server cannot continue; it must "
            "end with a user's turn",
            code="invalid_value",
            param="messages",
        )
    options: dict[str, Any] = {"max_tokens": body.get("max_tokens")}
    if options["max_tokens"] is None:
        raise bad("max_tokens", None, "a whole number above 0")
    sampling = {name: body[name] for name in _SAMPLING if body.get(name) is not None}
    options |= as_recommended(sampling)
    stops = _stops(body.get("stop_sequences"))
    if stops:
        options["stop"] = stops
    if (schema := _schema(body)) is not None:
        options["json_schema"] = schema
    budget = _budget(body.get("thinking"))
    # A budget of all tokens limits nothing, and a limit takes a grammar.
    if budget is not None and type(options["max_tokens"]) is int and budget < options["max_tokens"]:
        options["max_reasoning_tokens"] = budget
    options |= _tool_choice(body.get("tool_choice"), "tools" in conversation.template)
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise bad("stream", stream, "true or false")
    eager = _eager(body.get("tools"), _EAGER_BETA in betas)
    return MessagesAsked(
        conversation, {**options, **conversation.template}, stream is True, stops, eager
    )


def read_conversation(body: Mapping[str, Any]) -> Conversation:
    """Return what a model is to read of a body. Raises HttpError."""
    template: dict[str, Any] = {}
    if tools := _tools(body.get("tools")):
        template["tools"] = tools
    thinking = body.get("thinking")
    if thinking is not None:
        template["enable_thinking"] = _thinks(thinking)
    effort = _output_config(body).get("effort")
    if effort is not None:
        if not isinstance(effort, str) or effort not in _EFFORTS:
            raise bad("output_config.effort", effort, f"one of {', '.join(_EFFORTS)}")
        if (known := _EFFORTS[effort]) is not None:
            template["reasoning_effort"] = known
    _tool_choice(body.get("tool_choice"), "tools" in template)  # which some count the tokens with
    return Conversation(read_turns(body), template)


def _own_tools(given: object) -> list[tuple[dict[str, Any], str]]:
    """Return the tools that a client describes itself, each with its name in errors.

    Those of other types (web_search_20250305, ...) are of Anthropic's servers: they are skipped.
    """
    if given is None:
        return []
    if not isinstance(given, list):
        raise bad("tools", given, "a list of tools")
    tools = []
    for i, tool in enumerate(given):
        if not isinstance(tool, dict):
            raise bad(f"tools[{i}]", tool, "a map with name and input_schema")
        if tool.get("type") in (None, "custom"):
            tools.append((tool, f"tools[{i}]"))
    return tools


def _tools(given: object) -> list[dict[str, Any]]:
    """Return tools as of `chat`, which checks their names and schemas."""
    tools = []
    for tool, where in _own_tools(given):
        schema = tool.get("input_schema")
        if not isinstance(schema, dict):
            raise bad(f"{where}.input_schema", schema, "a JSON schema")
        described = {"name": text_of(tool, "name", where), "parameters": schema}
        for name in ("description", "strict"):
            if tool.get(name) is not None:
                described[name] = tool[name]
        tools.append(described)
    return tools


def _eager(tools: object, by_default: bool) -> frozenset[str]:
    eager = set()
    for tool, where in _own_tools(tools):
        said = tool.get("eager_input_streaming")
        if said is not None and not isinstance(said, bool):
            raise bad(f"{where}.eager_input_streaming", said, "true or false")
        if by_default if said is None else said:
            eager.add(text_of(tool, "name", where))
    return frozenset(eager)


def _tool_choice(choice: object, has_tools: bool) -> dict[str, Any]:
    if choice is None:
        return {}
    kind = choice.get("type") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(kind, str):
        raise bad("tool_choice", choice, "a map with type")
    options: dict[str, Any] = {}
    if kind == "tool":
        options["tool_choice"] = {"name": text_of(choice, "name", "tool_choice")}
    elif kind not in _CHOICES:
        raise bad("tool_choice.type", kind, "'auto', 'any', 'tool' or 'none'")
    elif has_tools or kind == "any":
        options["tool_choice"] = _CHOICES[kind]
    alone = choice.get("disable_parallel_tool_use")
    if alone is not None and not isinstance(alone, bool):
        raise bad("tool_choice.disable_parallel_tool_use", alone, "true or false")
    if alone:
        options["parallel_tool_calls"] = False
    return options


def _thinks(thinking: object) -> bool:
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if not isinstance(kind, str) or kind not in _THINKS:
        raise bad("thinking", thinking, "a map with type: 'enabled', 'adaptive' or 'disabled'")
    return _THINKS[kind]


def _budget(thinking: object) -> int | None:
    """Return the most tokens of thinking; None: nothing is said."""
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return None
    budget = thinking.get("budget_tokens")
    if budget is None:
        return None
    if type(budget) is not int or budget < 1:
        raise bad("thinking.budget_tokens", budget, "a whole number above 0")
    return budget


def _stops(stops: object) -> tuple[str, ...]:
    if stops is None:
        return ()
    if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):
        raise bad("stop_sequences", stops, "a list of texts, none of them empty")
    return tuple(stops)


def _output_config(body: Mapping[str, Any]) -> dict[str, Any]:
    config = body.get("output_config")
    if config is not None and not isinstance(config, dict):
        raise bad("output_config", config, "a map")
    return config or {}


def _schema(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the JSON schema of the answer; None: any text."""
    form = _output_config(body).get("format")
    form, where = (form, "output_config.format") if form is not None else (None, "output_format")
    form = body.get("output_format") if form is None else form
    if form is None:
        return None
    schema = form.get("schema") if isinstance(form, dict) else None
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        raise bad(where, form, "{'type': 'json_schema', 'schema': ...}")
    if not isinstance(schema, dict):
        raise bad(f"{where}.schema", schema, "a JSON schema")
    return schema
