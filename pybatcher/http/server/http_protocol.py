"""`HttpProtocol`: one HTTP connection, with limits on clients, on request heads and on time.

It overrides parts of uvicorn that are not public, so `pyproject.toml` bounds uvicorn to versions
that the tests of this room pass with. Raise the bound only together with a run of these tests.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import httptools
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ...errors.checks import short
from ..base.http_error import HttpError, refusal
from ..middleware.guard import BEGINS_EVENTS

__all__ = ["ConnectionLimits", "HttpProtocol"]

_HEADER = 32  # bytes of memory per header in addition to its text
_MOST_WAITING = 32  # pipelined requests; all are parsed at once
_MOST_UNSENT = 2**14  # bytes of events in the transport's buffer, and in the socket's
_MOST_BETWEEN = 2**12  # bytes of the extensions of all chunks of a body
_CHUNK = 12  # bytes of a chunk's framing: eight digits and two line ends
_FRAMING = (b"content-length", b"transfer-encoding")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one connection.

    admit: called with each new connection. False: the connection is cut.
    known: called with a connection whenever the head of a request is complete, and at its end.
    choose_app: called for each new connection; returns the application for all its requests.
    max_head: the most bytes of a request's head, and of its headers together.
    request_timeout: seconds for a complete request, head and body. A connection without a request,
        with a partial request, or with an answer that is not read for that long is cut within the
        same time again.
    """

    admit: Callable[[HttpProtocol], bool]
    known: Callable[[HttpProtocol], object]
    choose_app: Callable[[], Any]
    max_head: int
    request_timeout: float


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's connection, with the limits that uvicorn's httptools parser lacks.

    uvicorn limits neither the head of a request nor the time that half a request may take.
    """

    cycle: RequestResponseCycle | None  # type: ignore[assignment]  # there is none at first

    def __init__(self, *, limits: ConnectionLimits, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._limits = limits
        self._is_in_head = False
        self._n_head_bytes = 0  # bytes of the head in progress
        # Bytes of all headers of a request, including the trailers of its body.
        self._n_header_bytes = 0
        self._n_between = 0  # bytes outside of heads and bodies: the framing of chunks
        self._timer: asyncio.TimerHandle | None = None
        self._seen: tuple[RequestResponseCycle | None, bool] = (None, False)
        self._n_unread = 0  # bytes that waited to be sent at the last look
        self._asks_for_upgrade = False
        self._is_repeated = False  # the parser sees this head again: see `_parse`
        self._unanswered: deque[RequestResponseCycle] = deque()  # the oldest first
        self._in_transfer: RequestResponseCycle | None = None  # the request whose body is read
        self._refusal: str | None = None  # why a request was refused; no more are read

    # -- the connection ---------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        if self._limits.admit(self):
            self.app = self._limits.choose_app()
            self._look_again_later()
        else:
            self.transport.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._limits.known(self)
        super().connection_lost(exc)
        for cycle in self._unanswered:  # uvicorn tells only the newest one
            _disconnect(cycle)
        self._forget_requests()

    def _forget_requests(self) -> None:
        """Drop all references to this connection, so that its memory is freed at once.

        uvicorn keeps the timer of a connection that was aborted, and requests that refer to it.
        """
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        self._unanswered.clear()
        self.cycle = self._in_transfer = None
        self.scope = None  # type: ignore[assignment]

    def _look_again_later(self) -> None:
        self._timer = self.loop.call_later(self._limits.request_timeout, self._look)

    def _look(self) -> None:
        """Abort the connection if its client made no progress since the last look."""
        cycle = self.cycle
        is_answering = cycle is not None and not (cycle.more_body or cycle.response_complete)
        is_full = self.flow.write_paused  # the answer continues once the client has read some of it
        n_unread = self.transport.get_write_buffer_size() if is_full else 0
        reads_nothing = n_unread > 0 and n_unread == self._n_unread
        if reads_nothing or (not is_answering and self._seen == (cycle, False)):
            self.transport.abort()
            return
        self._seen, self._n_unread = (cycle, is_answering), n_unread
        self._look_again_later()

    # -- heads ------------------------------------------------------------------------------

    @override
    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._refusal is not None:
            return
        self._n_between += len(data)
        try:
            while (rest := self._parse(data)) is not None:
                data = rest
        except httptools.HttpParserError:
            self.send_400_response("This is no request of HTTP/1.1.")
            return
        if self._is_in_head and not self.transport.is_closing():
            self._n_head_bytes += len(data)
            if self._n_head_bytes > self._limits.max_head:
                self.send_400_response("The head of the request is too large.")
        elif not self._is_in_head:
            self._n_between = max(self._n_between, 0)
            if self._n_between > _MOST_BETWEEN and not self.transport.is_closing():
                if self._in_transfer is None and self._unanswered:  # it is complete already
                    self._in_transfer = self._unanswered[-1]
                self.send_400_response("The extensions of the chunks are too large.")

    def _parse(self, data: bytes) -> bytes | None:
        """Parse data up to a head that asks for another protocol; return the data to parse next.

        The returned data is the same head without the upgrade, and the rest. Otherwise the parser
        would take the body for the other protocol, and later bytes for a request that the author of
        the body could choose. None: all data was parsed.
        """
        try:
            self.parser.feed_data(data)
            return None
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        framing = [(name, value) for name, value in self.headers if name in _FRAMING]
        lines = [b"POST / HTTP/1.1", *(name + b": " + value for name, value in framing), b"\r\n"]
        self.parser = httptools.HttpRequestParser(self)
        self._is_repeated = True
        return b"\r\n".join(lines) + rest

    @override
    def send_400_response(self, msg: str) -> None:
        # refuses the request that is being read, after the answers to all requests before it
        self._refusal = msg
        refused, self._in_transfer = self._in_transfer, None
        if refused is not None and refused in self._unanswered:
            self._unanswered.remove(refused)
            self.pipeline = deque(one for one in self.pipeline if one[0] is not refused)
            _disconnect(refused)
            if refused.response_started:  # a second answer would be taken for a part of this one
                self.transport.close()
        if self._unanswered:
            self.cycle = self._unanswered[-1]
            self.flow.resume_reading()  # bytes that nobody reads would make the system cut answers
        elif not self.transport.is_closing():
            self._end_with_400(msg)

    @override
    def on_response_complete(self) -> None:
        while self._unanswered and self._unanswered[0].response_complete:
            self._unanswered.popleft()
        super().on_response_complete()
        is_last = not (self._unanswered or self.transport.is_closing())
        if self._refusal is not None and is_last:
            self._end_with_400(self._refusal)

    def _end_with_400(self, msg: str) -> None:
        self._unset_keepalive_if_required()
        body = json.dumps(HttpError(400, msg, code="invalid_http").body()).encode()
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        self.transport.write(head + body)
        self.transport.close()

    @override
    def on_message_begin(self) -> None:
        self._is_in_head = True
        if self._is_repeated:
            return
        self._n_head_bytes = self._n_header_bytes = 0
        self._in_transfer = None
        super().on_message_begin()

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        size = len(name) + len(value) + _HEADER
        self._n_header_bytes += size
        if not self._is_repeated:
            self._n_between -= size
        if self._n_header_bytes > self._limits.max_head:
            raise ValueError("the headers are too large")  # the parser ends the connection
        if not self._is_repeated:
            super().on_header(name, value)

    @override
    def on_url(self, url: bytes) -> None:
        if not self._is_repeated:
            self._n_between -= len(url) + _HEADER
            super().on_url(url)

    @override
    def on_body(self, body: bytes) -> None:
        self._n_between -= len(body)
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """Count the framing of a chunk. The parser has no callback for chunk extensions."""
        self._n_between -= _CHUNK

    @override
    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if not self._is_repeated:
            if len(self.pipeline) >= _MOST_WAITING:
                raise ValueError("too many requests wait for their turn")
            version = self.parser.get_http_version()
            _check_head(version, self.headers)
            self._limits.known(self)
            own = self.app
            cycles: list[RequestResponseCycle | None] = []
            if version == "1.0":
                self.app = partial(_end_by_closing, own, cycles)
            elif unknown := _unknown_expectation(self.headers):
                self.app = partial(_refuse_expectation, unknown)
            self.scope["extensions"] = {BEGINS_EVENTS: {"note": self._keep_little_unsent}}
            super().on_headers_complete()
            self.app = own
            cycles.append(self.cycle)
            if self.cycle is not None:
                self._in_transfer = self.cycle
                self._unanswered.append(self.cycle)
        self._asks_for_upgrade = not self._is_repeated and self.parser.should_upgrade()
        self._is_repeated = False

    def _keep_little_unsent(self) -> None:
        """Limit the bytes that wait unsent, so that an event writer soon notices a stalled reader.

        The system's buffers hold megabytes on loopback: minutes of generation that is never read.
        """
        self.transport.set_write_buffer_limits(high=_MOST_UNSENT)
        own: socket.socket = self.transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_UNSENT)

    @override
    def on_message_complete(self) -> None:
        if not self._asks_for_upgrade:  # otherwise the body is still to come
            super().on_message_complete()
            self._in_transfer = None


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Tell the application of a request that nobody waits for its answer any more."""
    if not cycle.response_complete:
        cycle.disconnected = True
    cycle.message_event.set()


def _check_head(version: str, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise ValueError for a head that another server might read in another way (RFC 9112)."""
    names = [name for name, _ in headers]
    if version not in ("1.0", "1.1"):
        raise ValueError(f"there is no version {version}")
    n_hosts = names.count(b"host")
    if n_hosts > 1 or (n_hosts == 0 and version == "1.1"):
        raise ValueError("a request has one host")
    if version == "1.0" and b"transfer-encoding" in names:
        raise ValueError("version 1.0 has no codings of transfer")


def _unknown_expectation(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Return the first `expect` value other than 100-continue; "" if there is none."""
    for name, value in headers:
        for one in value.split(b",") if name == b"expect" else ():
            if (wanted := one.strip(b" \t")) and wanted.lower() != b"100-continue":
                return wanted.decode("latin-1")
    return ""


async def _refuse_expectation(unknown: str, scope: Any, receive: Any, send: Any) -> None:
    """Answer with 417, and end the connection: the client may keep its body back for it."""
    error = HttpError(
        417,
        f"nothing is known of the expectation {short(unknown)}; there is 100-continue",
        code="expectation_failed",
        param="expect",
        headers={"connection": "close"},
    )
    await refusal(error, scope)(scope, receive, send)


async def _end_by_closing(
    app: Any, cycles: Sequence[Any], scope: Any, receive: Any, send: Any
) -> None:
    """Answer an HTTP/1.0 request without chunked encoding; the connection's end ends the body.

    uvicorn chunks every answer of unknown length. Proxies that speak HTTP/1.0 upstream, as nginx
    did by default for long, could not stream otherwise. cycles: the uvicorn cycle of this request.
    """
    (cycle,) = cycles
    cycle.chunked_encoding = False

    async def send_as_it_is(message: Any) -> None:
        cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, send_as_it_is)
