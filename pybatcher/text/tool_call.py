"""`ToolCall`: a call of a tool that a model wrote. `ToolCallDelta`: a streamed part of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .partial_json import cut_object

__all__ = ["ToolCall", "ToolCallDelta"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model wrote.

    id: the id of the call, for the message of role "tool" that answers it.
    arguments: their value. A number beyond a double is the largest double.
    raw: its text in the model's own syntax, from the marker that opens it (for the first call of a
        list; later ones begin with their own text) to the end of its arguments.
    arguments_text: the JSON text of the arguments, as a stream has it in its deltas.
    is_cut: True if the output was cut inside the call (`finish_reason` is "length" or "deadline",
        or a stop text is in the call). `arguments_text` is then the beginning of a JSON text, and
        `arguments` has the complete part of it. Such a call must not be run.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    raw: str
    arguments_text: str = ""
    is_cut: bool = False

    @classmethod
    def cut(cls, id: str, name: str, raw: str, arguments_text: str) -> ToolCall:
        """Return a call that was cut. arguments_text: the beginning of the JSON text."""
        arguments = cut_object(arguments_text) or {}
        return cls(id, name, arguments, raw, arguments_text, is_cut=True)

    @property
    def json_arguments(self) -> str:
        """The JSON text of the arguments, or its beginning if the call was cut."""
        if self.arguments_text or self.is_cut:
            return self.arguments_text
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The part of a call that one piece of a stream adds.

    index: the index of the call, from 0 on.
    id, name: in the first delta of a call, else "".
    arguments: more of the JSON text of its arguments.
    call: the whole call, in its last delta; with `is_cut` if the output was cut inside it.
    note: the reason why a call that had begun is none after all: its earlier deltas are void, and
        its text is in the `text` of the same piece. "" in all other deltas.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    call: ToolCall | None = None
    note: str = ""
