"""`CallBuilder`: collects one call while it is read, and emits its deltas."""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Mapping
from typing import Any, Literal

from .delta_writer import DeltaWriter
from .deltas import ToolCall
from .json_reader import json_text, plain_object
from .source import MalformedCallError

__all__ = ["CallBuilder", "call_id"]

_NO_NAME = "it has an argument without a name"
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_MISTRAL_LENGTH = 9


class CallBuilder:
    """Collects the name and the arguments of a call, in any order.

    The delta of its start is emitted when its name is known; for an exact call, when its arguments
    begin too. From then on the text of the arguments is passed on as it comes.

    schemas: schemas of the arguments, by the names of the tools; None: any name counts.
    exact: the name must be one of `schemas`, and arguments are required.

    Raises MalformedCallError for text that is no call.
    """

    def __init__(
        self, writer: DeltaWriter, schemas: Mapping[str, Mapping[str, Any]] | None, *, exact: bool
    ) -> None:
        self.name = ""
        self.exact = exact
        self.index: int | None = None
        self._writer = writer
        self._schemas = schemas
        self._id = ""
        self._has_arguments = False
        self._arguments: list[str] = []
        self._held: list[str] = []
        self._keys: set[str] = set()

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema of the arguments; empty if it is not known."""
        return (self._schemas or {}).get(self.name, {})

    def set_name(self, name: str) -> None:
        """Set the name, once."""
        if self.name:
            raise MalformedCallError("it has two names")
        if not _NAME.fullmatch(name):
            raise MalformedCallError("it has a name that no tool can have")
        if self.exact and self._schemas is not None and name not in self._schemas:
            raise MalformedCallError("it names no tool of the request")
        self.name = name
        self._start()

    def begin_arguments(self) -> None:
        """Record that arguments begin, once."""
        if self._has_arguments:
            raise MalformedCallError("it has arguments twice")
        self._has_arguments = True
        self._start()

    def add_text(self, text: str) -> None:
        """Add JSON text of the arguments."""
        self._arguments.append(text)
        if self.index is None:
            self._held.append(text)
        else:
            self._writer.arguments(text)

    def add_argument(self, key: str, value: object) -> None:
        """Add one argument, for syntaxes that write no JSON."""
        if not key or key in self._keys:
            raise MalformedCallError("it has an argument twice" if key else _NO_NAME)
        separator = ", " if self._keys else "{"
        self._keys.add(key)
        self.add_text(f"{separator}{json_text(key)}: {json_text(value)}")

    def end_arguments(self) -> None:
        """End arguments that came one by one."""
        self.add_text("}" if self._keys else "{}")

    def end(self, raw: Callable[[], str]) -> None:
        """End the call. raw: returns its text; it is called if the call is valid."""
        if not self.name:
            raise MalformedCallError("it has no name")
        if not self._has_arguments:
            if self.exact:
                raise MalformedCallError("it has no arguments")
            self.begin_arguments()
            self.add_text("{}")
        text = "".join(self._arguments)
        arguments = plain_object(text)
        assert self.index is not None  # the call started with its name
        self._writer.end_call(self.index, ToolCall(self._id, self.name, arguments, raw(), text))

    def cut(self, raw: str) -> bool:
        """End a call that the end of the text cut. False: the call has no name yet, and is none.

        raw: its text.
        """
        if not self.name:
            return False
        self._start_now()
        assert self.index is not None
        text = "".join(self._arguments)
        self._writer.end_call(self.index, ToolCall.cut(self._id, self.name, raw, text))
        return True

    def _start(self) -> None:
        if self.name and (self._has_arguments or not self.exact):
            self._start_now()

    def _start_now(self) -> None:
        if self.index is None:
            self.index, self._id = self._writer.start_call(self.name)
            self._writer.arguments("".join(self._held))
            self._held = []


def call_id(style: Literal["prefixed", "mistral"], prefix: str, index: int) -> str:
    """Return the id of the call at `index`.

    style: "prefixed": the prefix and the index; "mistral": nine letters and digits made from the
        two, as the chat templates of Mistral demand.
    """
    if style == "prefixed":
        return f"{prefix}{index}"
    text = f"{prefix}{index}".encode("utf-8", "surrogatepass")
    number = int.from_bytes(hashlib.sha256(text).digest())
    letters = []
    for _ in range(_MISTRAL_LENGTH):
        number, letter = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[letter])
    return "".join(letters)
