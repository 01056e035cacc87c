"""Items of a response in progress: reasoning, messages and calls. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from typing_extensions import override

__all__ = ["CallItem", "MessageItem", "OpenItem", "ReasoningItem"]

Event = dict[str, Any]
"""An event without its sequence number."""


class OpenItem(ABC):
    """An item that grows. Its methods return events in the order of sending.

    tag: identifies the response in the item's id. index: the `output_index` of the item.
    """

    prefix: ClassVar[str]

    def __init__(self, tag: str, index: int) -> None:
        self.id = f"{self.prefix}_{tag}{index:04x}"
        self._place: Event = {"item_id": self.id, "output_index": index}
        self._index = index
        self._told: list[str] = []
        self._fresh: list[str] = []
        self._logprobs: list[Event] = []
        self._fresh_logprobs: list[Event] = []

    @property
    def text(self) -> str:
        """The complete text of the item."""
        return "".join([*self._told, *self._fresh])

    def add(self, text: str, logprobs: Sequence[Event] = ()) -> None:
        """Add text, with the log-probabilities of its tokens in the form of the API."""
        if text:
            self._fresh.append(text)
            self._fresh_logprobs += logprobs

    def fresh(self) -> Iterator[Event]:
        """Return the event for the text since the last call. No text: no event."""
        if self._fresh:
            yield self._delta("".join(self._fresh))
            self._told += self._fresh
            self._logprobs += self._fresh_logprobs
            self._fresh, self._fresh_logprobs = [], []

    def begun(self) -> Iterator[Event]:
        """Return the first events of the item."""
        yield {
            "type": "response.output_item.added",
            "output_index": self._index,
            "item": self.body("in_progress"),
        }

    def done(self, status: str) -> Iterator[Event]:
        """Return the last events of the item."""
        yield {
            "type": "response.output_item.done",
            "output_index": self._index,
            "item": self.body(status),
        }

    @abstractmethod
    def body(self, status: str) -> dict[str, Any]:
        """Return the item with its present text."""

    @abstractmethod
    def _delta(self, text: str) -> Event: ...


class _WithPart(OpenItem):
    """An item with one part, which has the text."""

    stem: ClassVar[str]

    @override
    def begun(self) -> Iterator[Event]:
        yield from super().begun()
        yield {"type": "response.content_part.added", **self._at, "part": self._part()}

    @override
    def done(self, status: str) -> Iterator[Event]:
        yield {"type": f"response.{self.stem}.done", **self._at, **self._whole()}
        yield {"type": "response.content_part.done", **self._at, "part": self._part()}
        yield from super().done(status)

    @property
    def _at(self) -> Event:
        return {**self._place, "content_index": 0}

    def _content(self, status: str) -> list[Event]:
        """Return the parts: none at the beginning, because the first part has its own event."""
        return [] if status == "in_progress" else [self._part()]

    @override
    def _delta(self, text: str) -> Event:
        return {"type": f"response.{self.stem}.delta", **self._at, "delta": text}

    def _whole(self) -> Event:
        return {"text": self.text}

    @abstractmethod
    def _part(self) -> Event: ...


class ReasoningItem(_WithPart):
    """The reasoning of a model before its answer."""

    prefix = "rs"
    stem = "reasoning_text"

    @override
    def body(self, status: str) -> dict[str, Any]:
        content = self._content(status)
        fields = {"id": self.id, "type": "reasoning", "summary": [], "content": content}
        return {**fields, "status": status}

    @override
    def _part(self) -> Event:
        return {"type": "reasoning_text", "text": self.text}


class MessageItem(_WithPart):
    """The answer of a model."""

    prefix = "msg"
    stem = "output_text"

    @override
    def body(self, status: str) -> dict[str, Any]:
        fields = {"id": self.id, "type": "message", "role": "assistant", "status": status}
        return {**fields, "content": self._content(status)}

    @override
    def _delta(self, text: str) -> Event:
        return {**super()._delta(text), "logprobs": list(self._fresh_logprobs)}

    @override
    def _whole(self) -> Event:
        return {"text": self.text, "logprobs": list(self._logprobs)}

    @override
    def _part(self) -> Event:
        logprobs = list(self._logprobs)
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": logprobs}


class CallItem(OpenItem):
    """A call of a function. Its text is the JSON text of the arguments.

    number: the index of the call in the output. call_id: the id for the result of the call.
    """

    prefix = "fc"

    def __init__(self, tag: str, index: int, *, number: int, call_id: str, name: str) -> None:
        super().__init__(tag, index)
        self.number = number
        self._call_id = call_id
        self._name = name

    @override
    def done(self, status: str) -> Iterator[Event]:
        yield {
            "type": "response.function_call_arguments.done",
            **self._place,
            "name": self._name,
            "arguments": self.text,
        }
        yield from super().done(status)

    def void(self) -> Iterator[Event]:
        """Return the last event of an item that turned out not to be a call: it is incomplete."""
        yield from super().done("incomplete")

    @override
    def body(self, status: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": "" if status == "in_progress" else self.text,
        }

    @override
    def _delta(self, text: str) -> Event:
        return {"type": "response.function_call_arguments.delta", **self._place, "delta": text}
