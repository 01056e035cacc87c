"""`Mailbox`: the messages that the coordinator gets, and where they wait.

A `Delivery` is a message too: serve its request.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from ..calls.prefix_info import PrefixInfo
from ..scheduling import StepResult
from .delivery import Delivery

__all__ = [
    "Cancel",
    "Close",
    "HoldPrefix",
    "Mailbox",
    "Message",
    "PrefixMessage",
    "ReleasePrefix",
    "Restarted",
    "SharePrefix",
    "StepEnded",
    "WithdrawPrefix",
]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop a request; its reply gets nothing more."""

    request_id: int


@dataclass(frozen=True, slots=True)
class SharePrefix:
    """Keep the KV of tokens that many prompts will begin with."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class HoldPrefix:
    """Keep the KV of tokens under a name (None: make one up); `added` is set when it is there."""

    tokens: tuple[int, ...]
    name: str | None
    namespace: str
    added: asyncio.Future[PrefixInfo]


@dataclass(frozen=True, slots=True)
class WithdrawPrefix:
    """Undo a HoldPrefix whose sender waits no more."""

    message: HoldPrefix


@dataclass(frozen=True, slots=True, eq=False)
class ReleasePrefix:
    """Undo one HoldPrefix, by its name."""

    name: str
    namespace: str
    removed: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class StepEnded:
    """The engine thread is done with a step: its result, or what it raised, and its seconds."""

    outcome: StepResult | BaseException
    engine_seconds: float


@dataclass(frozen=True, slots=True)
class Restarted:
    """The engine thread is done with a restart of the engine. `error`: what it raised."""

    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Close:
    """Take no more requests; finish (`drain`) or fail the ones there are; then end."""

    drain: bool


PrefixMessage = HoldPrefix | WithdrawPrefix | ReleasePrefix

Message = Delivery | Cancel | SharePrefix | PrefixMessage | StepEnded | Restarted | Close


class Mailbox:
    """Messages in the order they came. One reader; nobody ever waits to write."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._messages: list[Message] = []
        self._reader: asyncio.Future[None] | None = None

    def put(self, message: Message) -> None:
        """From the loop's own thread."""
        self._messages.append(message)
        self._wake()

    def put_threadsafe(self, message: Message) -> None:
        """From any thread, from a finalizer too. Nothing happens once the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.put, message)

    def take_all(self) -> list[Message]:
        """All messages that are there; they are gone from here."""
        messages, self._messages = self._messages, []
        return messages

    async def wait(self, seconds: float | None) -> None:
        """Return when there is a message, or after so many seconds."""
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
