"""`DefaultTools`: tools, calls and results as text, for chat templates that ignore them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .formats import DEEPSEEK_SEPARATOR, CallSyntax, ResponseFormat

__all__ = ["DefaultTools", "write_calls", "write_response"]

Call = tuple[str, Mapping[str, Any] | str]
"""A call: the name of the tool, and its arguments or a text that should be their JSON."""

_SECTION = """\
# Tools

You may call these functions. Each line is one of them: its name, its description and the JSON \
schema of its arguments.

{tools}

{how}

{example}

{results} If no function helps, answer in plain text without a call."""
_CALL = "To call a function, write this, with its name and its arguments:"
_BARE_CALL = "To call a function, answer with this and nothing else, with its name and arguments:"
_OPEN, _CLOSE = "<tool_response>", "</tool_response>"
_RESULTS = f"The next message then has the result between {_OPEN} and {_CLOSE}."
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_EXAMPLE: Call = ("NAME", {"ARGUMENT": "VALUE"})


class DefaultTools:
    """Writes tools, calls and results into the texts of messages.

    format: the syntax in which the model writes calls. The description of the tools shows it, so
        that the parser and the grammars of that format apply.
    """

    def __init__(self, format: ResponseFormat) -> None:
        self._format = format

    def with_tools(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[Any], *, in_system: bool
    ) -> list[dict[str, Any]]:
        """Return messages with a description of the tools.

        messages: contents are texts, or lists of parts. tools: as in `ChatTemplate.render`.
        in_system: put it at the end of the system message, which is added if there is none; False:
            at the beginning of the first message of the user.
        """
        section = self._section(tools)
        if in_system:
            head = messages[0] if messages and messages[0]["role"] == "system" else None
            before = [head["content"], "\n\n"] if head is not None and head["content"] else []
            system = {**(head or {"role": "system"}), "content": _joined(*before, section)}
            return [system, *messages[0 if head is None else 1 :]]
        for index, message in enumerate(messages):
            if message["role"] == "user":
                told = {**message, "content": _joined(section, "\n\n", message["content"])}
                return [*messages[:index], told, *messages[index + 1 :]]
        return [{"role": "user", "content": section}, *messages]

    def with_text_turns(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return messages with the calls of assistants and the results of tools as texts.

        Results become a message of the user. A message of the user that follows joins it, since
        many templates refuse two in a row. messages: contents are texts, lists of parts or None.
        """
        made: list[dict[str, Any]] = []
        after_result = False
        for message in messages:
            role = message["role"]
            content = message.get("content") or ""
            if role == "tool":
                result = _joined(f"{_OPEN}\n", content, f"\n{_CLOSE}")
                if after_result:
                    made[-1]["content"] = _joined(made[-1]["content"], "\n", result)
                else:
                    made.append({"role": "user", "content": result})
            elif role == "user" and after_result:
                made[-1]["content"] = _joined(made[-1]["content"], "\n\n", content)
            elif calls := message.get("tool_calls"):
                functions = [call.get("function", call) for call in calls]
                text = write_calls(
                    self._format, [(one["name"], one["arguments"]) for one in functions]
                )
                plain = {key: message[key] for key in message if key != "tool_calls"}
                made.append({**plain, "content": f"{content}\n{text}" if content else text})
            else:
                made.append(message)
            after_result = role == "tool"
        return made

    def _section(self, tools: Sequence[Any]) -> str:
        functions = [tool.get("function", tool) for tool in tools]
        is_bare = not self._format.harmony and not self._format.opening_of_calls
        return _SECTION.format(
            tools="\n".join(map(_json, functions)),
            how=_BARE_CALL if is_bare else _CALL,
            example=write_calls(self._format, [_EXAMPLE]),
            results=_RESULTS,
        )


def _joined(*contents: str | list[Any]) -> str | list[Any]:
    """Return one content with all of these: a text, or parts if one of them has parts."""
    parts: list[Any] = []
    for content in contents:
        for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if parts and part["type"] == parts[-1]["type"] == "text":
                parts[-1] = {**part, "text": parts[-1]["text"] + part["text"]}
            else:
                parts.append(part)
    return parts if len(parts) != 1 or parts[0]["type"] != "text" else parts[0]["text"]


def write_calls(format: ResponseFormat, calls: Sequence[Call]) -> str:
    """Return calls as a model of this format writes them: as its grammar does.

    A format without calls gets JSON objects, a line each. Arguments that are a text are written
    unchanged.
    """
    if format.harmony:
        header = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>"
        texts = [header.format(name, _arguments(arguments)) for name, arguments in calls]
        return "<|start|>assistant".join(texts)
    syntax = format.calls[0] if format.calls else CallSyntax((), between="\n")
    texts = [_call(syntax, name, arguments) for name, arguments in calls]
    begin, end = syntax.around
    opened = syntax.opens[0] if syntax.opens else ""
    closed = syntax.closes[0] if syntax.closes else ""
    if syntax.listed:
        return f"{begin}{opened}{syntax.lead}[{', '.join(texts)}]{syntax.tail}{closed}{end}"
    blocks = [f"{opened}{syntax.lead}{text}{syntax.tail}{closed}" for text in texts]
    return f"{begin}{syntax.between.join(blocks)}{end}"


def write_response(
    format: ResponseFormat,
    content: str,
    reasoning: str = "",
    calls: Sequence[Call] = (),
    *,
    in_reasoning: bool = False,
) -> str:
    """Return the text of a response as a model of this format writes it.

    in_reasoning: the prompt ended inside reasoning. A format without markers of reasoning leaves it
    out.
    """
    called = write_calls(format, calls) if calls else ""
    if format.harmony:
        thought = f"<|channel|>analysis<|message|>{reasoning}<|end|>" if reasoning else ""
        channel = "commentary" if calls else "final"
        said = f"<|channel|>{channel}<|message|>{content}" if content or not calls else ""
        parts = [
            f"{reasoning}<|end|>" if in_reasoning else thought,
            f"{said}<|end|>" if said and calls else said,
            called,
        ]
        return "<|start|>assistant".join(filter(None, parts))
    begin = ""
    if format.think and (reasoning or in_reasoning):
        think = format.think[0]
        begin = f"{'' if in_reasoning else think.open}\n{reasoning}\n{think.close}\n\n"
    return f"{begin}{content}" + ("\n" if content and called else "") + called


def _call(syntax: CallSyntax, name: str, arguments: Mapping[str, Any] | str) -> str:
    """Return a call without the texts that open and close it."""
    form = syntax.forms[0]
    if isinstance(arguments, str) and form in ("xml", "arg_keys", "gemma"):
        arguments = {"arguments": arguments} if arguments else {}
    text = _arguments(arguments)
    match form, arguments:
        case "xml", Mapping():
            values = (
                f"<parameter={key}>\n{_text(value)}\n</parameter>\n"
                for key, value in arguments.items()
            )
            return f"<function={name}>\n{''.join(values)}</function>"
        case "arg_keys", Mapping():
            values = (
                f"<arg_key>{key}</arg_key>\n<arg_value>{_text(value)}</arg_value>\n"
                for key, value in arguments.items()
            )
            return f"{name}\n{''.join(values)}"
        case "gemma", Mapping():
            return f"call:{name}{_gemma(arguments, syntax.quote)}"
        case "mistral", _:
            return f"{name}[ARGS]{text}"
        case "function_json", _:
            return f"{name}>{text}</function>"
        case "deepseek_bare", _:
            return f"{name}{DEEPSEEK_SEPARATOR}{text}"
        case "deepseek", _:
            return f"function{DEEPSEEK_SEPARATOR}{name}\n```json\n{text}\n```"
        case _:
            keys = _json(syntax.name_keys[0]), _json(syntax.arguments_keys[0])
            return f"{{{keys[0]}: {_json(name)}, {keys[1]}: {text}}}"


def _arguments(arguments: Mapping[str, Any] | str) -> str:
    return arguments or "{}" if isinstance(arguments, str) else _json(arguments)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _gemma(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, Mapping):
        members = (
            f"{key if _BARE_KEY.fullmatch(key) else quote + key + quote}:{_gemma(one, quote)}"
            for key, one in value.items()
        )
        return f"{{{','.join(members)}}}"
    if isinstance(value, list):
        return f"[{','.join(_gemma(one, quote) for one in value)}]"
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
