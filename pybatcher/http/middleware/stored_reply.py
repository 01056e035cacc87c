"""`StoredReply`: the messages of one response, stored as they arrive, for all its clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import Message, Send

from ...calls.backpressure import CURRENT_BACKPRESSURE, Backpressure

__all__ = ["Answer", "StoredReply"]

_MOST_AHEAD = 16  # messages that a client can be behind and still count as reading
_OVERHEAD = 320  # bytes of a message in memory in addition to its body
# the holder of a pause; the response itself as the holder would be a reference cycle
_UNREAD = object()

Answer = Callable[[Callable[[], Awaitable[Message]], Send], Awaitable[None]]
"""An ASGI application with the scope of one request."""


class StoredReply:
    """A response that is made once, in its own task, and sent to any number of clients.

    request: identifies the request.
    has_room: called with the size in bytes before each message is stored. After it returns False
        once, messages are dropped when all clients have received them, and the response is made no
        faster than its clients read.

    While it has no client, or all clients are far behind, its calls pause in favour of others.

    No object that it refers to refers to it, so that a response that is evicted is freed at once.
    """

    def __init__(self, request: bytes, has_room: Callable[[int], bool]) -> None:
        self.request = request
        self.n_bytes = 0  # bytes that has_room has granted
        self.is_cut = False  # the beginning was dropped, so that it cannot be sent again
        self.has_ended = False
        self._has_room = has_room
        self._messages: list[Message] = []
        self._n_dropped = 0
        self._positions: dict[object, int] = {}  # the number of messages sent, by client
        self._changed = asyncio.Event()
        self._abandoned = asyncio.Event()
        self._has_failed = False
        self._error: BaseException | None = None  # None again after the last client has got it
        self._backpressure = Backpressure(_MOST_AHEAD)

    @property
    def n_clients(self) -> int:
        """The number of clients that receive the response."""
        return len(self._positions)

    @property
    def is_worth_keeping(self) -> bool:
        """True if the request was executed. A refused request can be repeated."""
        if self.is_cut or self._has_failed or not self._messages:
            return False
        start = self._messages[0]
        return start["status"] == 200 or (b"x-should-retry", b"false") in start["headers"]

    # -- making it --------------------------------------------------------------------------

    async def make(self, answer: Answer, body: bytes) -> None:
        """Let an application answer a request with this body. Raises CancelledError only."""
        CURRENT_BACKPRESSURE.set(self._backpressure)
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        del body  # the body can be large

        async def receive() -> Message:
            if parts:
                return parts.pop()
            await self._abandoned.wait()
            return {"type": "http.disconnect"}

        try:
            await answer(receive, self._add)
        except BaseException as error:
            self._error, self._has_failed = error, True  # send_to raises it for each client
            if not isinstance(error, Exception):
                raise
        finally:
            self.has_ended = True
            self._wake()

    def abandon(self) -> None:
        """Tell the application that the client has disconnected."""
        self._abandoned.set()
        self._wake()

    async def _add(self, message: Message) -> None:
        size = _OVERHEAD + len(message.get("body", b""))
        # An abandoned response is never evicted, so that its memory would never be released.
        if not self.is_cut and not self._abandoned.is_set() and self._has_room(size):
            self.n_bytes += size
        else:
            self.is_cut = True
        self._messages.append(message)
        self._note_reading()
        self._wake()
        while self.is_cut and self._messages and not self._abandoned.is_set():
            n_all = self._n_dropped + len(self._messages)
            if all(position == n_all for position in self._positions.values()):
                self._n_dropped = n_all
                self._messages.clear()
            else:
                await self._changed.wait()

    # -- sending it -------------------------------------------------------------------------

    def join(self) -> object:
        """Return a new client, for `send_to` and `leave`."""
        client = object()
        self._positions[client] = 0
        self._note_reading()
        return client

    def leave(self, client: object) -> None:
        """Remove a client."""
        del self._positions[client]
        self.drop_error()
        self._note_reading()
        self._wake()

    def drop_error(self) -> None:
        """Release the error after the end if there is no client to get it.

        The frames of its traceback refer to this response: a reference cycle.
        """
        if self.has_ended and not self._positions:
            self._error = None

    async def send_to(
        self, client: object, send: Send, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        """Send the response from its beginning to its end.

        headers: additional headers. Raises the error of the application.
        """
        while True:
            at = self._positions[client] - self._n_dropped
            if at < len(self._messages):
                message = dict(self._messages[at])  # a copy, because middleware adds headers to it
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], *headers]
                await send(message)
                self._positions[client] += 1
                if self._backpressure.is_paused:
                    self._note_reading()
                if self.is_cut:
                    self._wake()
            elif not self.has_ended:
                await self._changed.wait()
            elif self._error is not None:
                raise self._error
            else:
                return

    def _note_reading(self) -> None:
        """Pause the calls of the response while no client is near its end."""
        if self.has_ended:
            return
        n_all = self._n_dropped + len(self._messages)
        behind = min((n_all - position for position in self._positions.values()), default=None)
        if behind is None or behind > _MOST_AHEAD:
            self._backpressure.pause(_UNREAD)
        elif behind <= _MOST_AHEAD // 2:
            self._backpressure.resume(_UNREAD)

    def _wake(self) -> None:
        """Wake all tasks that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()
