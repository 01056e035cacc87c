"""Reads request bodies of Anthropic's Messages API as arguments of `chat`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ...params import chat_sampling
from ..base.forms import refuse_unknown_forms
from ..base.http_error import HttpError
from ..base.image_sources import ImageSource, image_part, read_image_url, read_media_type
from ..base.sampling_fields import bad, read_text, unsupported
from ..base.turns import check_count, joined_turn, lines

__all__ = [
    "Conversation",
    "MessagesAsked",
    "names_of_tools",
    "read_conversation",
    "read_request",
    "read_turns",
    "text_of",
]

_EAGER_BETA = "fine-grained-tool-streaming"
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty")
_THINKS = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}
# Templates know "low" and "high". Some do not know "medium", which is their default.
_EFFORTS = {"low": "low", "medium": None, "high": "high", "xhigh": "high", "max": "high"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_BILLING = "x-anthropic-billing-header"
_MESSAGES = "a list of at least one message"
_OF_USERS = "'text', 'image' or 'tool_result': this server reads nothing else in a user's turn"
_OF_ASSISTANTS = "'text', 'thinking' or 'tool_use': this server reads nothing else in such a turn"
_OF_RESULTS = "'text' or 'image': this server reads nothing else here"
_TEXT_ONLY = "'text': this server reads nothing else here"


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages for the model, in the form of `chat`, and the options of the chat template.

    The images of the messages are `ImageSource`s, for `load_images`.
    """

    messages: list[dict[str, Any]]
    template: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MessagesAsked:
    """A request for a message: the arguments of `chat`, and the form of the answer.

    options: options of `chat`, including those of the conversation's template.
    stops: the stop sequences.
    eager: the tools whose input is streamed before it is known to be complete.
    names: as of `names_of_tools`.
    """

    conversation: Conversation
    options: dict[str, Any]
    stream: bool
    stops: tuple[str, ...]
    eager: frozenset[str]
    names: dict[str, str]


def read_request(body: Mapping[str, Any], betas: str = "") -> MessagesAsked:
    """Read the body of a request. Ignores unknown keys. Raises HttpError.

    Only shapes that are specific to this API are checked here; the call checks everything else.
    betas: the value of the header anthropic-beta.
    """
    refuse_unknown_forms(body, ("output_config", "output_format"), "output_config.format")
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
    options |= chat_sampling(sampling)
    stops = _stops(body.get("stop_sequences"))
    if stops:
        options["stop"] = stops
    if (schema := _schema(body)) is not None:
        options["json_schema"] = schema
    budget = _budget(body.get("thinking"))
    # A budget of all tokens limits nothing, and a limit would need a grammar.
    if budget is not None and type(options["max_tokens"]) is int and budget < options["max_tokens"]:
        options["max_reasoning_tokens"] = budget
    options |= _tool_choice(body.get("tool_choice"), "tools" in conversation.template)
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise bad("stream", stream, "true or false")
    eager = _eager(body.get("tools"), _EAGER_BETA in betas)
    return MessagesAsked(
        conversation,
        {**options, **conversation.template},
        stream is True,
        stops,
        eager,
        names_of_tools(body.get("tools")),
    )


def read_conversation(body: Mapping[str, Any]) -> Conversation:
    """Read the conversation of a body. Raises HttpError."""
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
    # Some clients count tokens with a tool_choice. "none" takes the tools out of the prompt.
    choice = _tool_choice(body.get("tool_choice"), "tools" in template)
    if choice.get("tool_choice") == "none":
        template |= {"tool_choice": "none"}
    return Conversation(read_turns(body), template)


def _own_tools(given: object) -> list[tuple[dict[str, Any], str]]:
    """Return the tools that a client describes itself, each with its name in errors.

    Tools of other types (web_search_20250305, ...) run on Anthropic's servers. They are skipped.
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


def names_of_tools(given: object) -> dict[str, str]:
    """Return the names that tools and their schemas have in a request, by those in the call.

    given: a list that `read_conversation` has read.
    """
    names: dict[str, str] = {}
    for i, (_, where) in enumerate(_own_tools(given)):
        names |= {f"tools[{i}]": where, f"tools[{i}].parameters": f"{where}.input_schema"}
    return names


def _tools(given: object) -> list[dict[str, Any]]:
    """Return the tools in the form of `chat`, which checks their names and schemas."""
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
    """Return the limit on thinking tokens. None: the request has no limit."""
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
    """Return the JSON schema of the answer. None: any text."""
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


def read_turns(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a body. Neighbours with the same role are joined, except tool
    messages.

    System messages at the beginning become one system message. A later system message becomes a
    part of the user's turn, in the tag in which agents mark their own words: a quarter of 70 real
    chat templates refuse or lose a system message that is not the first.
    """
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise bad("messages", given, _MESSAGES)
    check_count(given, "messages")
    system = [_system(body["system"], "system")] if body.get("system") is not None else []
    turns: list[dict[str, Any]] = []
    names: dict[str, str] = {}  # tool names by call id
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(message, dict):
            raise bad(where, message, "a map with role and content")
        content, where = message.get("content"), f"{where}.content"
        if role == "system":
            text = _system(content, where)
            if not turns:
                system.append(text)
            elif text:
                reminder = f"<system-reminder>\n{text}\n</system-reminder>"
                turns.append({"role": "user", "content": reminder})
        elif role == "user":
            turns += _user(content, where, names)
        elif role == "assistant":
            turns.append(_assistant(content, where, names))
        else:
            raise bad(f"messages[{i}].role", role, "'user', 'assistant' or 'system'")
    if text := lines(system):
        turns.insert(0, {"role": "system", "content": text})
    if not turns:
        raise bad("messages", given, _MESSAGES)
    return _joined(turns)


def _joined(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the turns with neighbours of the same role joined, as this API defines turns."""
    joined: list[dict[str, Any]] = []
    for role, own in groupby(turns, key=lambda turn: turn["role"]):
        parts = list(own)
        joined += parts if role == "tool" else [joined_turn(parts)]
    return joined


def _system(content: object, where: str) -> str:
    """Return the text of a system prompt without the billing header that agents put into it.

    The header changes with every request, so that the prefix cache would never find the prompt.
    """
    if isinstance(content, str):
        return _without_billing(read_text(content, where))
    if isinstance(content, list):
        check_count(content, where)
    return lines(map(_without_billing, _texts(content, where)))


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_BILLING) else text


def _user(content: object, where: str, names: Mapping[str, str]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"role": "user", "content": read_text(content, where)}]
    turns: list[dict[str, Any]] = []
    for block, at in _blocks(content, where):
        kind = block.get("type")
        if kind == "text":
            turns.append({"role": "user", "content": text_of(block, "text", at)})
        elif kind == "image":
            turns.append({"role": "user", "content": [_image(block, at)]})
        elif kind == "tool_result":
            turns.append(_tool_result(block, at, names))
        else:
            raise bad(f"{at}.type", kind, _OF_USERS)
    return turns or [{"role": "user", "content": ""}]


def _tool_result(block: dict[str, Any], where: str, names: Mapping[str, str]) -> dict[str, Any]:
    call_id = text_of(block, "tool_use_id", where)
    content = block.get("content")
    if content is None:
        content = ""
    elif isinstance(content, str):
        read_text(content, f"{where}.content")
    else:
        content = _result(content, f"{where}.content")
    is_error = block.get("is_error")
    if is_error is not None and not isinstance(is_error, bool):
        raise bad(f"{where}.is_error", is_error, "true or false")
    if is_error:  # templates have no other place for the flag
        if isinstance(content, str):
            content = f"Error: {content}"
        else:
            content = [{"type": "text", "text": "Error:"}, *content]
    turn = {"role": "tool", "tool_call_id": call_id, "content": content}
    return {**turn, "name": names[call_id]} if call_id in names else turn


def _result(content: object, where: str) -> str | list[dict[str, Any]]:
    """Return the result of a tool: a text, or parts if it has images."""
    blocks = _blocks(content, where)
    if not any(block.get("type") == "image" for block, _ in blocks):
        return lines(_texts(content, where))
    parts = []
    for block, at in blocks:
        kind = block.get("type")
        if kind == "image":
            parts.append(_image(block, at))
        elif kind == "text":
            parts.append({"type": "text", "text": text_of(block, "text", at)})
        else:
            raise bad(f"{at}.type", kind, _OF_RESULTS)
    return parts


def _image(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    source, where = block.get("source"), f"{where}.source"
    kind = source.get("type") if isinstance(source, dict) else None
    if isinstance(source, dict) and kind == "base64":
        read_media_type(source.get("media_type"), f"{where}.media_type")
        data = source.get("data")
        if not isinstance(data, str):
            raise bad(f"{where}.data", data, "the base64 of an image")
        return image_part(ImageSource(f"{where}.data", data))
    if isinstance(source, dict) and kind == "url":
        return image_part(read_image_url(source.get("url"), f"{where}.url"))
    if kind == "file":
        raise unsupported(f"{where}.type", "this server keeps no files; send base64")
    if not isinstance(source, dict):
        raise bad(where, source, "a map with type, media_type and data")
    raise bad(f"{where}.type", kind, "'base64' or 'url'")


def _assistant(content: object, where: str, names: dict[str, str]) -> dict[str, Any]:
    """Return an assistant's turn in the shape of `Completion.message`."""
    if isinstance(content, str):
        return {"role": "assistant", "content": read_text(content, where)}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block, at in _blocks(content, where):
        kind = block.get("type")
        if kind == "text":
            texts.append(text_of(block, "text", at))
        elif kind == "thinking":
            thoughts.append(text_of(block, "thinking", at))
        elif kind == "tool_use":
            calls.append(_tool_use(block, at, names))
        # Redacted thinking can be read only by the model that wrote it.
        elif kind != "redacted_thinking":
            raise bad(f"{at}.type", kind, _OF_ASSISTANTS)
    turn: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thought := lines(thoughts):
        turn["reasoning_content"] = thought
    if calls:
        turn["tool_calls"] = calls
    return turn


def _tool_use(block: dict[str, Any], where: str, names: dict[str, str]) -> dict[str, Any]:
    call_id, name = text_of(block, "id", where), text_of(block, "name", where)
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise bad(f"{where}.input", arguments, "a map")
    names[call_id] = name
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _blocks(content: object, where: str) -> list[tuple[dict[str, Any], str]]:
    """Return the blocks of a content, each with its name in errors."""
    if not isinstance(content, list):
        raise bad(where, content, "a text or a list of blocks")
    blocks = []
    for i, block in enumerate(content):
        if not isinstance(block, dict):
            raise bad(f"{where}[{i}]", block, "a map with type")
        blocks.append((block, f"{where}[{i}]"))
    return blocks


def _texts(content: object, where: str) -> list[str]:
    """Return the texts of a content that must not have other blocks."""
    texts = []
    for block, at in _blocks(content, where):
        if block.get("type") != "text":
            raise bad(f"{at}.type", block.get("type"), _TEXT_ONLY)
        texts.append(text_of(block, "text", at))
    return texts


def text_of(block: Mapping[str, Any], name: str, where: str) -> str:
    """Return a text field of a block or a tool. Raises HttpError.

    where: the name of the block in errors.
    """
    return read_text(block.get(name), f"{where}.{name}")
