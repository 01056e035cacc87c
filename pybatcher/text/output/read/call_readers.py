"""Readers of one call in each of the forms that models write."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..formats.formats import DEEPSEEK_SEPARATOR, CallSyntax
from .argument_values import quoted_value, typed_value
from .call_builder import CallBuilder
from .json_reader import (
    MAX_DEPTH,
    check_not_ended,
    check_plain,
    expect,
    json_text,
    loads,
    plain_object,
    read_colon,
    read_string,
    read_value,
)
from .markers import Markers
from .python_literals import WORD_CHARACTERS, read_python_value, word_value
from .source import MalformedCallError, Reading, TextSource

__all__ = [
    "XML_OPEN",
    "read_arg_keys_call",
    "read_deepseek_call",
    "read_gemma_call",
    "read_json_arguments",
    "read_json_call",
    "read_mistral_call",
    "read_python_call",
    "read_xml_call",
]

XML_OPEN = "<function="

_NAME_CHARACTERS = re.compile(r"[A-Za-z0-9_.:/-]*")
_KEY_CHARACTERS = re.compile(r"[^<>\r\n]*")
_GEMMA_BARE_CHARACTERS = re.compile(r"[^<>:,{}\[\]\s]*")
_PARAMETER_OPEN, _PARAMETER_CLOSE = "<parameter=", "</parameter>"
_XML_CLOSE = "</function>"
_PARAMETER_END = Markers([_PARAMETER_CLOSE])
_ARG_KEY_END, _ARG_VALUE_END = Markers(["</arg_key>"]), Markers(["</arg_value>"])
_OTHER_KEYS = frozenset({"type", "id"})
_PYTHON_NAME_CHARACTERS = re.compile(r"[A-Za-z0-9_.]*")


def read_json_call(source: TextSource, call: CallBuilder, syntax: CallSyntax) -> Reading[None]:
    """Read `{"name": ..., "arguments": {...}}`, in any order of the keys.

    `{"type": "function", "function": {...}}` and `{"function": "NAME", ...}` are read as well.
    """
    yield from expect(source, "{")
    yield from source.blanks()
    if (yield from source.literal("}")):
        return
    while True:
        key = yield from read_string(source)
        known = key in syntax.name_keys or key in syntax.arguments_keys or key == "function"
        if call.exact and not known and key not in _OTHER_KEYS:
            raise MalformedCallError(f"it has the key {key[:64]!r}, which no call has")
        yield from read_colon(source)
        first = yield from source.peek()
        if key == "function" and first == "{":
            yield from read_json_call(source, call, syntax)
        elif (key in syntax.name_keys or key == "function") and first == '"':
            call.set_name((yield from read_string(source)))
        elif key in syntax.arguments_keys:
            yield from read_json_arguments(source, call)
        else:
            yield from read_value(source)
        yield from source.blanks()
        if (yield from expect(source, ",", "}")) == "}":
            return
        yield from source.blanks()


def read_json_arguments(source: TextSource, call: CallBuilder) -> Reading[None]:
    """Read the arguments: an object, a JSON string that holds one, or null for none."""
    call.begin_arguments()
    first = yield from source.peek()
    if first == "{":
        source.listener = call.add_text
        try:
            yield from read_value(source)
        finally:
            source.listener = None
    elif first == '"':
        text = yield from read_string(source)
        call.add_text(json_text(plain_object(text or "{}")))
    elif (yield from source.literal("null")):
        call.add_text("{}")
    else:
        raise MalformedCallError("its arguments are not a JSON object")


def read_xml_call(source: TextSource, call: CallBuilder) -> Reading[None]:
    """Read `NAME><parameter=KEY>value</parameter>...</function>`, the text after XML_OPEN.

    Values are texts; their types come from the schema of the tool. A JSON object instead of the
    parameters is read as well.
    """
    name = yield from source.run(_NAME_CHARACTERS)
    yield from expect(source, ">")
    call.set_name(name)
    yield from source.blanks()
    if (yield from source.peek()) == "{":
        yield from read_json_arguments(source, call)
        yield from source.blanks()
        yield from expect(source, _XML_CLOSE)
        return
    call.begin_arguments()
    while (yield from expect(source, _PARAMETER_OPEN, _XML_CLOSE)) == _PARAMETER_OPEN:
        key = yield from source.run(_KEY_CHARACTERS)
        yield from expect(source, ">")
        value = _without_line_ends((yield from _read_until(source, _PARAMETER_END)))
        yield from expect(source, _PARAMETER_CLOSE)
        call.add_argument(key, typed_value(value, call.schema, key))
        yield from source.blanks()
    call.end_arguments()


def read_arg_keys_call(
    source: TextSource, call: CallBuilder, closes: tuple[str, ...]
) -> Reading[None]:
    """Read `NAME<arg_key>KEY</arg_key><arg_value>value</arg_value>...`, and the text that closes
    it.

    Values are texts; their types come from the schema of the tool.
    """
    name = yield from source.run(_NAME_CHARACTERS)
    yield from source.blanks()
    found = yield from expect(source, "<arg_key>", *closes)
    call.set_name(name)
    call.begin_arguments()
    while found == "<arg_key>":
        key = yield from _read_until(source, _ARG_KEY_END)
        yield from expect(source, "</arg_key>")
        yield from source.blanks()
        yield from expect(source, "<arg_value>")
        value = yield from _read_until(source, _ARG_VALUE_END)
        yield from expect(source, "</arg_value>")
        yield from source.blanks()
        call.add_argument(key.strip(), typed_value(value, call.schema, key.strip()))
        found = yield from expect(source, "<arg_key>", *closes)
    call.end_arguments()


def _read_until(source: TextSource, end: Markers) -> Reading[str]:
    parts: list[str] = []
    if not (yield from source.until(end, parts.append)):
        raise MalformedCallError("it ends in the middle")
    return "".join(parts)


def _without_line_ends(value: str) -> str:
    """Remove the line ends that the syntax puts around a value, one on each side."""
    return value.removeprefix("\r").removeprefix("\n").removesuffix("\n").removesuffix("\r")


def read_mistral_call(source: TextSource, call: CallBuilder) -> Reading[None]:
    """Read `NAME[ARGS]{...}` or `NAME[CALL_ID]ID[ARGS]{...}`; without [ARGS] as well."""
    call.set_name((yield from _read_name(source)))
    if (yield from source.literal("[ARGS]", "[CALL_ID]")) == "[CALL_ID]":
        yield from source.run(_NAME_CHARACTERS)
        yield from expect(source, "[ARGS]")
    yield from source.blanks()
    yield from read_json_arguments(source, call)


def _read_name(source: TextSource) -> Reading[str]:
    name = yield from source.run(_NAME_CHARACTERS)
    yield from check_not_ended(source)
    return name


def read_deepseek_call(source: TextSource, call: CallBuilder) -> Reading[None]:
    """Read `function<SEPARATOR>NAME`, then a fenced object; or `NAME<SEPARATOR>{...}`."""
    name = yield from source.run(_NAME_CHARACTERS)
    yield from expect(source, DEEPSEEK_SEPARATOR)
    if name == "function" and (yield from source.peek()) != "{":
        name = yield from _read_name(source)
    call.set_name(name)
    yield from source.blanks()
    fence = yield from source.literal("```json", "```")
    yield from source.blanks()
    yield from read_json_arguments(source, call)
    if fence:
        yield from source.blanks()
        yield from expect(source, "```")


def read_gemma_call(source: TextSource, call: CallBuilder, quote: str) -> Reading[None]:
    """Read `call:NAME{key:<quote>text<quote>,other:1}`."""
    yield from expect(source, "call:")
    yield from source.blanks()
    call.set_name((yield from _read_name(source)))
    yield from source.blanks()
    call.begin_arguments()
    yield from _read_members(
        source,
        quote,
        lambda key, value: call.add_argument(key, quoted_value(value, call.schema, key)),
        0,
    )
    call.end_arguments()


def _read_members(
    source: TextSource, quote: str, add: Callable[[str, Any], None], depth: int
) -> Reading[None]:
    yield from expect(source, "{")
    yield from source.blanks()
    if (yield from source.literal("}")):
        return
    while True:
        if (yield from source.literal(quote)):
            key = yield from _read_quoted(source, quote)
        elif (yield from source.peek()) == '"':
            key = yield from read_string(source)
        else:
            key = yield from source.run(_GEMMA_BARE_CHARACTERS)
        yield from read_colon(source)
        value = yield from _read_gemma_value(source, quote, depth + 1)
        yield from check_not_ended(source)
        add(key, value)
        yield from source.blanks()
        if (yield from expect(source, ",", "}")) == "}":
            return
        yield from source.blanks()


def _read_gemma_value(source: TextSource, quote: str, depth: int) -> Reading[Any]:
    if depth > MAX_DEPTH:
        raise MalformedCallError(f"its arguments are nested more than {MAX_DEPTH} levels deep")
    if (yield from source.literal(quote)):
        return (yield from _read_quoted(source, quote))
    first = yield from source.peek()
    if first == '"':
        return (yield from read_string(source))
    if first == "{":
        members: dict[str, Any] = {}
        yield from _read_members(source, quote, members.__setitem__, depth)
        return members
    if first == "[":
        return (yield from _read_gemma_list(source, quote, depth))
    word = yield from source.run(_GEMMA_BARE_CHARACTERS)
    if not word:
        raise MalformedCallError(f"it has {first!r} where a value must be")
    try:
        return loads(word)
    except MalformedCallError:
        check_plain(word)
        return word  # a text that the model did not quote


def _read_quoted(source: TextSource, quote: str) -> Reading[str]:
    text = yield from _read_until(source, Markers([quote]))
    yield from expect(source, quote)
    return text


def _read_gemma_list(source: TextSource, quote: str, depth: int) -> Reading[list[Any]]:
    items: list[Any] = []
    source.take(1)
    yield from source.blanks()
    if (yield from source.literal("]")):
        return items
    while True:
        items.append((yield from _read_gemma_value(source, quote, depth + 1)))
        yield from source.blanks()
        if (yield from expect(source, ",", "]")) == "]":
            return items
        yield from source.blanks()


def read_python_call(source: TextSource, call: CallBuilder) -> Reading[None]:
    """Read one call, whose arguments are literals. `print(NAME(...))` counts as the inner one.

    Positional arguments take the names of the schema's properties, in their order. An exact call
    starts when it is complete.
    """
    name = yield from source.run(_PYTHON_NAME_CHARACTERS)
    yield from expect(source, "(")
    printed = name == "print"
    if printed:
        yield from source.blanks()
        name = yield from source.run(_PYTHON_NAME_CHARACTERS)
        yield from expect(source, "(")
    call.set_name(name.removesuffix(".call"))
    if not call.exact:
        call.begin_arguments()
    yield from _read_arguments(source, call)
    if printed:
        yield from source.blanks()
        yield from expect(source, ")")
    if call.exact:
        call.begin_arguments()
    call.end_arguments()


def _read_arguments(source: TextSource, call: CallBuilder) -> Reading[None]:
    """Read the text in the brackets, and the closing bracket."""
    positional = 0
    yield from source.blanks()
    while not (yield from source.literal(")")):
        word = yield from source.run(WORD_CHARACTERS)
        yield from source.blanks()
        if word and (yield from source.literal("=")):
            yield from source.blanks()
            value = yield from read_python_value(source, 1)
            yield from check_not_ended(source)
            call.add_argument(word, quoted_value(value, call.schema, word))
        else:
            value = word_value(word) if word else (yield from read_python_value(source, 1))
            yield from check_not_ended(source)
            name = _positional_name(call.schema, positional)
            call.add_argument(name, quoted_value(value, call.schema, name))
            positional += 1
        yield from source.blanks()
        if (yield from expect(source, ",", ")")) == ")":
            return
        yield from source.blanks()


def _positional_name(schema: Mapping[str, Any], index: int) -> str:
    properties = schema.get("properties")
    names = list(properties) if isinstance(properties, Mapping) else []
    if index >= len(names):
        raise MalformedCallError("it has an argument without a name")
    return str(names[index])
