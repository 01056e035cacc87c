"""`ToolCall`: a call of a tool that a model wrote. `ToolCallDelta`: a streamed part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["ToolCall", "ToolCallDelta"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model wrote.

    id: the id of the call, for the message of role "tool" that answers it.
    raw: its text in the model's own syntax, from the marker that opens it (for the first call of a
        list; later ones begin with their own text) to the end of its arguments.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    raw: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The part of a call that one piece of a stream adds.

    index: the index of the call, from 0 on.
    id, name: in the first delta of a call, else "".
    arguments: more of the JSON text of its arguments.
    call: the whole call, in its last delta.
    note: the reason why a call that had begun is none after all: its earlier deltas are void, and
        its text is in the `text` of the same piece. "" in all other deltas.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    call: ToolCall | None = None
    note: str = ""
