"""`HttpProtocol`: one connection of HTTP, with limits on who connects, on heads and on time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

__all__ = ["ConnectionLimits", "HttpProtocol"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one connection.

    admit: called with the transport of each new connection. False: it is cut.
    max_head: most bytes of the head of a request, and of its headers together.
    request_timeout: seconds in which a request has to come, head and body. A connection that has
        begun none, or has one half sent, for so long is cut within the same time once more.
    """

    admit: Callable[[asyncio.BaseTransport], bool]
    max_head: int
    request_timeout: float


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's connection. Its parser limits no head, and waits for half a request for ever."""

    cycle: RequestResponseCycle | None  # type: ignore[assignment]  # there is none at first

    def __init__(self, *, limits: ConnectionLimits, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits = limits
        self._is_in_head = False
        self._n_head_bytes = 0  # of the head that has begun and not ended
        self._n_header_bytes = 0  # of all headers of a request; trailers of its body are such
        self._timer: asyncio.TimerHandle | None = None
        self._seen: tuple[RequestResponseCycle | None, bool] = (None, False)

    # -- the connection ---------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        if self._limits.admit(transport):
            self._look_again_later()
        else:
            self.transport.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _look_again_later(self) -> None:
        self._timer = self.loop.call_later(self._limits.request_timeout, self._look)

    def _look(self) -> None:
        """Cut the connection if it waits for the same request as at the last look."""
        cycle = self.cycle
        is_answering = cycle is not None and not (cycle.more_body or cycle.response_complete)
        if not is_answering and self._seen == (cycle, False):
            self.transport.abort()
            return
        self._seen = (cycle, is_answering)
        self._look_again_later()

    # -- heads ------------------------------------------------------------------------------

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_in_head and not self.transport.is_closing():
            self._n_head_bytes += len(data)
            if self._n_head_bytes > self._limits.max_head:
                self.send_400_response("The head of the request is too large.")

    @override
    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._n_head_bytes = self._n_header_bytes = 0
        super().on_message_begin()

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        self._n_header_bytes += len(name) + len(value)
        if self._n_header_bytes > self._limits.max_head:
            raise ValueError("the headers are too large")  # the parser ends the connection for it
        super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()
