"""Reads requests of OpenAI's Responses API. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...params import chat_sampling
from ..base.field_names import PART
from ..base.http_error import HttpError
from ..base.sampling_fields import (
    ANY_LENGTH,
    bad,
    read_flag,
    read_sampling,
    read_text,
    renamed_fields,
    unsupported,
)
from .responses_input import read_input

__all__ = ["ResponseAsked", "read_response", "told_error"]

_LOGPROBS = "message.output_text.logprobs"
_MOST_TOP = 20
_MOST_METADATA = 16
_OTHERS = ("n",)  # fields of the other APIs, which this API ignores as unknown
_FORMAT = "text.format"
_STATE = ("previous_response_id", "conversation", "prompt")
_NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "reasoning_effort": "reasoning.effort",
}
_CHAT = ("enable_thinking", "chat_template_kwargs", "max_reasoning_tokens")


@dataclass(frozen=True, slots=True)
class ResponseAsked:
    """A request for a response: the arguments of `chat`, and the form of the answer.

    told: the fields of the request that the response repeats. It is valid JSON once the call has
        been accepted. names: the request's fields by argument, if their names differ.
    """

    messages: list[dict[str, Any]]
    options: dict[str, Any]
    stream: bool
    told: dict[str, Any]
    names: dict[str, str]


def read_response(body: Mapping[str, Any]) -> ResponseAsked:
    """Read the body of a request. Ignores unknown keys; null is the same as a missing field.

    Only shapes that are specific to this API are checked here; the call checks everything else.
    Raises HttpError.
    """
    _refuse_state(body)
    messages = read_input(body.get("input"), body.get("instructions"))
    own = {key: body[key] for key in body if key not in _OTHERS}
    options = chat_sampling(read_sampling(own, format_field=_FORMAT))
    most = _whole(body, "max_output_tokens", 1, ANY_LENGTH)
    options["max_tokens"] = ANY_LENGTH if most is None else most
    logprobs = _logprobs(body)
    if logprobs is not None:
        options["logprobs"] = logprobs
    options |= {name: body[name] for name in _CHAT if body.get(name) is not None}
    form, text = _format(body)
    reasoning = _reasoning(body)
    if reasoning["effort"] is not None:
        options["reasoning_effort"] = reasoning["effort"]
    tools = _tools(body.get("tools"), "tools")
    choice = _tool_choice(body.get("tool_choice"))
    parallel = read_flag(body, "parallel_tool_calls", True)
    if tools:
        options |= {"tools": tools, "parallel_tool_calls": parallel}
    if choice is not None and (tools or choice not in ("auto", "none")):
        options["tool_choice"] = choice
    told = {
        "instructions": body.get("instructions"),
        "max_output_tokens": most,
        "metadata": _metadata(body.get("metadata")),
        "parallel_tool_calls": parallel,
        "reasoning": reasoning,
        "temperature": own.get("temperature"),
        "text": {"format": text},
        "tool_choice": "auto" if choice is None else choice,
        "tools": tools,
        "top_logprobs": logprobs or 0,
        "top_p": own.get("top_p"),
    }
    names = {**_NAMES, **renamed_fields(own, format_field=_FORMAT)}
    for option in form:
        if option in options:
            raise bad(_FORMAT, text, f"left out, because {names.get(option, option)} is given")
        names[option] = _FORMAT
    options |= form
    names |= _names_of_tools(body.get("tools"))
    return ResponseAsked(messages, options, read_flag(body, "stream", False), told, names)


def told_error(error: HttpError, names: Mapping[str, str]) -> HttpError:
    """Return an error of a call with the field names of this API."""
    field = error.param or ""
    for pattern in (PART, r"\w+\[\d+\]"):
        item = re.match(pattern, field)
        if item is None or (own := names.get(item[0])) is None:
            continue
        rest = error.message.removeprefix(item[0])
        return error.of_field(own + field[item.end() :], own + rest)
    name = names.get(re.split(r"[.\[]", field)[0])
    if name is None:
        return error
    is_whole = field in names  # otherwise the field is a part, whose place in the request differs
    message = name + error.message.removeprefix(field) if is_whole else f"{name}: {error.message}"
    return error.of_field(name, message)


def _refuse_state(body: Mapping[str, Any]) -> None:
    """Raise HttpError if a request refers to state of an earlier one."""
    for name in _STATE:
        if body.get(name) is not None:
            raise unsupported(name, "this server keeps nothing; send all items as input")
    if read_flag(body, "background", False):
        raise unsupported("background", "this server answers at once; leave it out or use stream")
    read_flag(body, "store", False)
    truncation = body.get("truncation")
    if truncation not in (None, "disabled", "auto"):
        raise bad("truncation", truncation, "'disabled' or 'auto'")
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise bad("stream_options", options, "a map")


def _whole(body: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise bad(name, value, f"a whole number from {low} to {high}")
    return value


def _logprobs(body: Mapping[str, Any]) -> int | None:
    """Return the number of alternatives in log-probabilities. None: no log-probabilities."""
    include = body.get("include")
    is_list = isinstance(include, list) and all(isinstance(one, str) for one in include)
    if include is not None and not is_list:
        raise bad("include", include, "a list of texts")
    top = _whole(body, "top_logprobs", 0, _MOST_TOP)
    return top or 0 if top or _LOGPROBS in (include or ()) else None


def _format(body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of structured output, and the format as the response repeats it."""
    text = body.get("text")
    if text is not None and not isinstance(text, dict):
        raise bad("text", text, "a map")
    given = None if text is None else text.get("format")
    if given is None:
        return {}, {"type": "text"}
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return {}, {"type": "text"}
    if kind == "json_object":
        if given.get("schema") is not None:
            raise bad("text.format.type", kind, "'json_schema', if there is a schema")
        return {"json_object": True}, {"type": "json_object"}
    if kind != "json_schema":
        raise bad("text.format", given, "{'type': 'text' | 'json_object' | 'json_schema', ...}")
    schema, name = given.get("schema"), given.get("name")
    if not isinstance(schema, dict):
        raise bad("text.format.schema", schema, "a JSON schema")
    told = {
        "type": "json_schema",
        "name": "" if name is None else read_text(name, "text.format.name"),
        "schema": schema,
        "strict": read_flag(given, "strict", False, "text.format."),
    }
    return {"json_schema": schema}, told


def _reasoning(body: Mapping[str, Any]) -> dict[str, Any]:
    reasoning = body.get("reasoning")
    if reasoning is None:
        return {"effort": None, "summary": None}
    if not isinstance(reasoning, dict):
        raise bad("reasoning", reasoning, "a map with effort and summary")
    said = {name: reasoning.get(name) for name in ("effort", "summary")}
    for name, value in said.items():
        if value is not None:
            read_text(value, f"reasoning.{name}")
    return said


def _tools(tools: object, name: str) -> list[dict[str, Any]]:
    """Return the functions among the tools. Clients also send tools that run elsewhere.

    name: the name of the tools' field in errors.
    """
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise bad(name, tools, "a list of tools")
    functions = []
    for index, tool in enumerate(tools):
        where = f"{name}[{index}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str):
            raise bad(where, tool, "a map with type")
        if kind == "function":
            functions.append(_function(tool, where))
    return functions


def _names_of_tools(tools: object) -> dict[str, str]:
    """Return the names of the functions among the tools by those in the call, which has no others.

    tools: a list that `_tools` has read.
    """
    given = tools if isinstance(tools, list) else []
    own = [i for i, tool in enumerate(given) if tool.get("type") == "function"]
    return {f"tools[{k}]": f"tools[{i}]" for k, i in enumerate(own)}


def _function(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a function as the response repeats it, with the fields of this API only."""
    function = {
        "type": "function",
        "name": read_text(tool.get("name"), f"{where}.name", may_be_empty=False),
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": read_flag(tool, "strict", False, f"{where}."),
    }
    if function["description"] is not None:
        read_text(function["description"], f"{where}.description")
    if not isinstance(function["parameters"], (dict, type(None))):
        raise bad(f"{where}.parameters", function["parameters"], "a JSON schema")
    return function


def _tool_choice(choice: object) -> Any:
    """Return the tool choice without skipped tools, with the fields of this API only."""
    if choice is None or isinstance(choice, str):
        return choice
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function" and isinstance(choice, dict):
        name = read_text(choice.get("name"), "tool_choice.name")
        return {"type": "function", "name": name}
    if kind == "allowed_tools" and isinstance(choice, dict):
        tools = _tools(choice.get("tools"), "tool_choice.tools")
        names = [{"type": "function", "name": tool["name"]} for tool in tools]
        mode = read_text(choice.get("mode", "auto"), "tool_choice.mode")
        return {"type": "allowed_tools", "mode": mode, "tools": names}
    wanted = "'auto', 'none', 'required', a function, or allowed_tools"
    raise bad("tool_choice", choice, wanted)


def _metadata(metadata: object) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or len(metadata) > _MOST_METADATA:
        raise bad("metadata", metadata, f"a map of at most {_MOST_METADATA} texts")
    return {
        read_text(key, "metadata"): read_text(value, "metadata") for key, value in metadata.items()
    }
