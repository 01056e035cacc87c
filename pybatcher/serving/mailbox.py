"""`Mailbox`: how anybody tells the coordinator anything. The messages, and where they wait."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from ..calls.inquiry import InquiryReply
from ..calls.prefix_info import PrefixInfo
from ..calls.stream import Reply
from ..scheduling import Request, StepResult
from .output_text import OutputText

__all__ = [
    "AddPrefix",
    "Cancel",
    "Close",
    "Mailbox",
    "Message",
    "PrefixMessage",
    "RemovePrefix",
    "Restarted",
    "SharePrefix",
    "StepEnded",
    "Submit",
    "WithdrawPrefix",
]


@dataclass(frozen=True, slots=True)
class Submit:
    """Serve this request. `submitted`: when its caller asked, on the coordinator's clock.

    text: of one that comes with output, as it is after that.
    """

    request: Request
    reply: Reply | InquiryReply
    submitted: float
    text: OutputText | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody waits for this request any more."""

    request_id: int


@dataclass(frozen=True, slots=True)
class SharePrefix:
    """Many prompts will begin with these tokens."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AddPrefix:
    """Keep the KV of these tokens by a name (None: make one up), and say when it is there."""

    tokens: tuple[int, ...]
    name: str | None
    namespace: str
    added: asyncio.Future[PrefixInfo]


@dataclass(frozen=True, slots=True)
class WithdrawPrefix:
    """Whoever sent this before waits no more, and holds nothing."""

    message: AddPrefix


@dataclass(frozen=True, slots=True, eq=False)
class RemovePrefix:
    """Let go of a prefix, once."""

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


PrefixMessage = AddPrefix | WithdrawPrefix | RemovePrefix

Message = Submit | Cancel | SharePrefix | PrefixMessage | StepEnded | Restarted | Close


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
