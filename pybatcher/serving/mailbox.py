"""`Mailbox`: the queue of the coordinator's messages, and the messages.

A `RequestState` is a message too: it submits its request.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from ..calls.backpressure import Backpressure
from ..calls.prefix_info import PrefixInfo
from ..scheduling import StepResult
from .request_state import RequestState

__all__ = [
    "Cancel",
    "Close",
    "ForgetImages",
    "HoldPrefix",
    "Mailbox",
    "Message",
    "PauseRequests",
    "PrefixMessage",
    "ReleasePrefix",
    "Restarted",
    "SharePrefix",
    "StepEnded",
    "WithdrawPrefix",
]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop a request; its reply gets no further results."""

    request_id: int


@dataclass(frozen=True, slots=True)
class PauseRequests:
    """Pause requests while others are in flight, or resume them (`paused` is False)."""

    request_ids: range
    paused: bool


@dataclass(frozen=True, slots=True)
class SharePrefix:
    """Keep the KV of tokens that many prompts will begin with."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class HoldPrefix:
    """Keep the KV of tokens under a name; sets `added` when it is computed.

    name: None generates a name.
    """

    tokens: tuple[int, ...]
    name: str | None
    namespace: str
    added: asyncio.Future[PrefixInfo]


@dataclass(frozen=True, slots=True)
class WithdrawPrefix:
    """Undo a HoldPrefix whose sender was cancelled."""

    message: HoldPrefix


@dataclass(frozen=True, slots=True, eq=False)
class ReleasePrefix:
    """Undo one HoldPrefix, by its name."""

    name: str
    namespace: str
    removed: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class ForgetImages:
    """Drop all KV and all rows of images: later prompts use ids of earlier images again."""


@dataclass(frozen=True, slots=True)
class StepEnded:
    """The end of a step on the engine thread: its result or exception, and its seconds."""

    outcome: StepResult | BaseException
    engine_seconds: float


@dataclass(frozen=True, slots=True)
class Restarted:
    """The end of a restart of the engine. error: the exception of a restart that failed."""

    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Close:
    """Take no more requests; finish (`drain`) or fail those in flight; then end."""

    drain: bool


PrefixMessage = HoldPrefix | WithdrawPrefix | ReleasePrefix

Message = (
    RequestState
    | Cancel
    | PauseRequests
    | SharePrefix
    | ForgetImages
    | PrefixMessage
    | StepEnded
    | Restarted
    | Close
)


class Mailbox:
    """A queue of messages in the order they came, with one reader. Writing never waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._messages: list[Message] = []
        self._reader: asyncio.Future[None] | None = None

    def put(self, message: Message) -> None:
        """Add a message, from the loop's own thread."""
        self._messages.append(message)
        self._wake()

    def put_threadsafe(self, message: Message) -> None:
        """Add a message, from any thread or a finalizer; do nothing once the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.put, message)

    def watch(self, backpressure: Backpressure, request_ids: range) -> None:
        """Put a `PauseRequests` at each change of the back-pressure of these requests."""
        backpressure.watch(lambda is_paused: self.put(PauseRequests(request_ids, is_paused)))

    def take_all(self) -> list[Message]:
        """Remove and return all messages."""
        messages, self._messages = self._messages, []
        return messages

    async def wait(self, seconds: float | None) -> None:
        """Wait for a message, at most `seconds`; None waits without a limit."""
        if self._messages:
            return
        self._reader = self._loop.create_future()
        timer = None if seconds is None else self._loop.call_later(seconds, self._wake)
        try:
            await self._reader
        finally:
            self._reader = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
