"""`Link`: the client's end of one connection of the sidecar protocol, on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from typing_extensions import override

from ...errors import (
    ConnectionLostError,
    InvalidRequestError,
    ProtocolError,
    PybatcherError,
)
from ..protocol.connection import ClientProtocol, Limits, RpcResponse
from ..protocol.wire import error_from_wire
from ..protocol.wire_images import PackedImage, chunks_of

__all__ = ["Link", "ending_of"]

OnDelta = Callable[[dict[str, Any]], None]
OnEnd = Callable[[PybatcherError | None, Any], None]


class Link(asyncio.Protocol):
    """One connection, with any number of calls at once. For the thread of its loop.

    peer: the name of the other end, for errors.
    on_notification: called with the method and the params of each notification except deltas.
    on_lost: called once, when the connection is lost and every call has ended.
    """

    def __init__(
        self,
        *,
        peer: str,
        limits: Limits | None = None,
        on_notification: Callable[[str, list[Any]], None] | None = None,
        on_lost: Callable[[ConnectionLostError], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._peer = peer
        self._protocol = ClientProtocol(limits or Limits())
        self._on_notification = on_notification
        self._on_lost = on_lost
        self._transport: asyncio.WriteTransport | None = None
        self._calls: dict[int, tuple[OnDelta | None, OnEnd]] = {}
        self._sent: set[str] = set()  # digests of images
        self._will_flush = False
        self._lost: ConnectionLostError | None = None

    # -- for its owner ----------------------------------------------------------------------

    @property
    def n_in_flight(self) -> int:
        """Number of calls that have not ended."""
        return len(self._calls)

    def start_call(
        self, method: str, params: list[Any], on_end: OnEnd, on_delta: OnDelta | None = None
    ) -> int:
        """Send a request and return its id.

        on_end: called once, with an error or the result.
        on_delta: called with each delta of a stream, before `on_end`.
        Raises ConnectionLostError if the connection is lost already.
        """
        if self._lost is not None:
            raise ConnectionLostError(*self._lost.args)
        call_id = self._protocol.request(method, params)
        self._calls[call_id] = (on_delta, on_end)
        self._flush_soon()
        return call_id

    def send_images(self, images: Sequence[PackedImage]) -> None:
        """Send images that messages refer to, each once for the connection.

        Raises InvalidRequestError if there is no room for all of them at the other end.
        """
        n_bytes = sum(len(one.data) for one in {one.digest: one for one in images}.values())
        limits = self._protocol.limits
        if n_bytes > limits.image_bytes:
            raise InvalidRequestError(
                f"messages have images of {n_bytes} bytes together; {self._peer} takes at most "
                f"{limits.image_bytes}: send fewer at once, or compress them",
                field="messages",
            )
        for image in images:
            if image.digest not in self._sent:
                self._sent.add(image.digest)
                for chunk in chunks_of(image, limits.max_frame):
                    self.notify("image", chunk)

    def forget_images(self, images: Sequence[PackedImage]) -> None:
        """Send these images again when they are needed: the other end has dropped one of them."""
        self._sent.difference_update(image.digest for image in images)

    async def request(self, method: str, params: list[Any]) -> Any:
        """Send a request and return its result. Raises the error that the peer responds with."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        call_id = self.start_call(method, params, ending_of(answer))
        try:
            return await answer
        except asyncio.CancelledError:
            self.cancel(call_id)
            raise

    def cancel(self, call_id: int) -> None:
        """Cancel a call; `on_end` is not called. Does nothing if it has ended already."""
        if call_id in self._calls:
            self._calls[call_id] = (None, _ignore)
            self.notify("cancel", [call_id])

    def notify(self, method: str, params: list[Any]) -> None:
        """Send a notification; do nothing once the connection is lost."""
        if self._lost is None:
            self._protocol.notify(method, params)
            self._flush_soon()

    def close(self) -> None:
        """Close the connection. Every call ends with ConnectionLostError."""
        if self._transport is not None:
            self._flush()
            self._transport.abort()

    # -- for the loop -----------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass
        self._transport = cast(asyncio.WriteTransport, transport)
        self._flush_soon()

    @override
    def data_received(self, data: bytes) -> None:
        calls = self._calls
        for event in self._protocol.receive(data):
            if isinstance(event, RpcResponse):
                call = calls.pop(event.msgid, None)
                if call is not None:
                    if event.error is not None:
                        call[1](error_from_wire(event.error), None)
                    else:
                        call[1](None, event.result)
            elif event.method == "delta":
                self._take_delta(event.params)
            elif self._on_notification is not None:
                self._on_notification(event.method, event.params)
        if self._protocol.must_close:
            self._give_up(
                ProtocolError(f"{self._peer} broke the protocol: {self._protocol.violation}")
            )

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost is None:
            why = f": {exc}" if exc is not None else ""
            self._end(ConnectionLostError(f"the connection to {self._peer} was closed{why}"))

    # -- inside -----------------------------------------------------------------------------

    def _take_delta(self, params: list[Any]) -> None:
        """Pass a delta to its call. Deltas of cancelled or unknown calls are dropped."""
        if len(params) != 2 or not isinstance(params[0], int) or not isinstance(params[1], dict):
            self._give_up(ProtocolError(f"{self._peer} sent a delta that is not [id, map]"))
            return
        call = self._calls.get(params[0])
        if call is None or call[0] is None:
            return
        try:
            call[0](params[1])
        except PybatcherError as error:
            self._give_up(error)

    def _give_up(self, error: PybatcherError) -> None:
        own = ConnectionLostError(str(error))
        own.__cause__ = error
        self._end(own)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: ConnectionLostError) -> None:
        if self._lost is not None:
            return
        self._lost = error
        calls, self._calls = self._calls, {}
        for _, on_end in calls.values():
            own = ConnectionLostError(*error.args)
            own.__cause__ = error.__cause__
            on_end(own, None)
        if self._on_lost is not None:
            self._on_lost(error)

    def _flush_soon(self) -> None:
        """Send at the end of this turn of the loop, so that all its messages are one write."""
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._will_flush = False
        if self._transport is not None and self._lost is None:
            data = self._protocol.data_to_send()
            if data:
                self._transport.write(data)


def _ignore(_error: PybatcherError | None, _result: Any) -> None:
    """Do nothing at the end of a call that was cancelled."""


def ending_of(answer: asyncio.Future[Any]) -> OnEnd:
    """Return an `on_end` that sets a future, unless the future was cancelled."""

    def end(error: PybatcherError | None, result: Any) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    return end
