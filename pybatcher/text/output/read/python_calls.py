"""Reader of a call that a model wrote as one in Python: `NAME(key=value, ...)`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .argument_values import quoted_value
from .call_builder import CallBuilder
from .json_reader import expect
from .python_literals import WORD_CHARACTERS, read_python_value, word_value
from .source import MalformedCallError, Reading, TextSource

__all__ = ["read_python_call"]

_NAME_CHARACTERS = re.compile(r"[A-Za-z0-9_.]*")


def read_python_call(source: TextSource, call: CallBuilder) -> Reading[None]:
    """Read one call, whose arguments are literals. `print(NAME(...))` counts as the inner one.

    Positional arguments take the names of the schema's properties, in their order. An exact call
    starts when it is complete.
    """
    name = yield from source.run(_NAME_CHARACTERS)
    yield from expect(source, "(")
    printed = name == "print"
    if printed:
        yield from source.blanks()
        name = yield from source.run(_NAME_CHARACTERS)
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
    """Read what is in the brackets, and the one that closes."""
    positional = 0
    yield from source.blanks()
    while not (yield from source.literal(")")):
        word = yield from source.run(WORD_CHARACTERS)
        yield from source.blanks()
        if word and (yield from source.literal("=")):
            yield from source.blanks()
            value = yield from read_python_value(source, 1)
            call.add_argument(word, quoted_value(value, call.schema, word))
        else:
            value = word_value(word) if word else (yield from read_python_value(source, 1))
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
