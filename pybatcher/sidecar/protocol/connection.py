"""The sidecar's protocol, both sides of one connection: bytes in, events out, and the reverse.

MessagePack-RPC: `[0, msgid, method, params]` is a Request, `[1, msgid, error, result]` its
Response, `[2, method, params]` a Notification. No socket, loop or clock is in here.

A side is OPEN until its peer breaks the protocol; then it is VIOLATED for good: `must_close` is
set, the bytes to be sent end with the answer to the violation, and its owner sends them and closes
the connection. The table of states:

    ServerProtocol            OPEN                                      VIOLATED
    receive: Request, new     in flight; the event                      ignored
      msgid is in flight      answered duplicate_id; the first goes on  ignored
      max_in_flight are       answered queue_full                       ignored
    receive: Notification     the event                                 ignored
    receive: Response         -> VIOLATED                               ignored
    receive: faulty frame     answered invalid_request, where a msgid   ignored
                              can be read; -> VIOLATED
    respond, fail: in flight  sent; no more in flight                   no more in flight
    respond, fail: not        RuntimeError                              RuntimeError
    notify                    sent                                      dropped

    ClientProtocol            OPEN                                      VIOLATED
    receive: Response to one  no more in flight; the event              ignored
      in flight
    receive: Response else    -> VIOLATED                               ignored
    receive: Notification     the event                                 ignored
    receive: Request          -> VIOLATED                               ignored
    receive: faulty frame     -> VIOLATED                               ignored
    request                   sent; in flight                           ProtocolError
    notify                    sent                                      dropped

A faulty frame is one that is malformed, passes a limit, or is none of the three
kinds. Frames before it in the same bytes count. A Request in flight has exactly one
Response; a duplicate's answer comes besides, with the same msgid.

An answer may have more bytes than the message it answers, at worst some 20 for each: the owner of a
ServerProtocol stops reading from a peer that does not read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...errors import InvalidRequestError, ProtocolError
from .frame_head import MAX_MSGID
from .frames import Fault, FrameReader, FrameWriter
from .limits import Limits

__all__ = [
    "ClientProtocol",
    "Limits",
    "RpcMessage",
    "RpcNotification",
    "RpcRequest",
    "RpcResponse",
    "ServerProtocol",
]

REQUEST, RESPONSE, NOTIFICATION = 0, 1, 2
RETRY_AFTER_MS = 100
"""The `retry_after_ms` of `queue_full` for too many requests in flight: one step of a large model.
"""


class RpcRequest(NamedTuple):
    """A request of the peer to run `method`; it waits for a Response with this msgid."""

    msgid: int
    method: str
    params: list[Any]


class RpcResponse(NamedTuple):
    """The outcome of the Request with this msgid. error: None if it succeeded."""

    msgid: int
    error: Any
    result: Any


class RpcNotification(NamedTuple):
    """A message of the peer that has no answer."""

    method: str
    params: list[Any]


RpcMessage = RpcRequest | RpcResponse | RpcNotification


def _message_of(frame: list[Any]) -> RpcMessage | Fault:
    """Return the message of a frame. It compares `type`, as True and 1.0 are no message types."""
    kind = frame[0] if frame else None
    if type(kind) is not int or not REQUEST <= kind <= NOTIFICATION:
        return Fault("a frame must begin with 0, 1 or 2", None)
    if kind == NOTIFICATION:
        if len(frame) != 3:
            return Fault(f"a Notification must have 3 elements, not {len(frame)}", None)
        method, params = _method(frame[1]), frame[2]
        if method is None or type(params) is not list:
            return Fault("a Notification must be [2, method: str, params: array]", None)
        return RpcNotification(method, params)
    msgid = frame[1] if len(frame) > 1 else None
    if type(msgid) is not int or not 0 <= msgid <= MAX_MSGID:
        return Fault("msgid must be a whole number from 0 to 2**32 - 1", None)
    if kind == RESPONSE:
        if len(frame) != 4:
            return Fault(f"a Response must have 4 elements, not {len(frame)}", None)
        return RpcResponse(msgid, frame[2], frame[3])
    if len(frame) != 4:
        return Fault(f"a Request must have 4 elements, not {len(frame)}", msgid)
    method, params = _method(frame[2]), frame[3]
    if method is None or type(params) is not list:
        return Fault("a Request must be [0, msgid, method: str, params: array]", msgid)
    return RpcRequest(msgid, method, params)


def _method(value: object) -> str | None:
    if type(value) is str:
        return value
    if type(value) is bytes:  # old packers have no text type
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return None


class _Side:
    """The common part of both sides of a connection."""

    def __init__(self, limits: Limits, *, reads: Limits, writes: Limits) -> None:
        self.limits = limits
        self.must_close = False
        """True once the peer has broken the protocol: send `data_to_send()`, then close."""
        self.violation: str | None = None
        """The peer's protocol violation, for the log; None without one."""
        self._reader = FrameReader(reads)
        self._writer = FrameWriter(writes)
        self._in_flight: set[int] = set()
        self._out: list[bytes] = []

    @property
    def n_in_flight(self) -> int:
        """Number of requests that have no Response yet."""
        return len(self._in_flight)

    def notify(self, method: str, params: list[Any]) -> None:
        """Send a Notification."""
        if not self.must_close:
            self._out.append(self._writer.write((NOTIFICATION, method, params)))

    def data_to_send(self) -> bytes:
        """Take the bytes to be sent, in order; b"" if there are none."""
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def _violate(self, reason: str) -> None:
        self.must_close = True
        self.violation = reason


class ServerProtocol(_Side):
    """The server's side of a connection, by the table at the top of this module."""

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        super().__init__(limits, reads=limits.of_requests, writes=limits)

    def receive(self, data: bytes) -> list[RpcRequest | RpcNotification]:
        """Return the messages that these bytes complete, in order. Raises nothing for any bytes."""
        events: list[RpcRequest | RpcNotification] = []
        if self.must_close:
            return events
        for frame in self._reader.read(data):
            event = _message_of(frame)
            if type(event) is RpcNotification:
                events.append(event)
            elif type(event) is RpcRequest:
                if self._admit(event.msgid):
                    events.append(event)
            elif type(event) is Fault:
                self._refuse_fault(event)
                return events
            else:
                self._violate("a Response, which only a server sends")
                return events
        if self._reader.fault is not None:
            self._refuse_fault(self._reader.fault)
        return events

    def respond(self, msgid: int, result: object) -> None:
        """Answer a request in flight; a result beyond the limits becomes the error `too_long`.

        Raises RuntimeError if the request is not in flight; TypeError, ValueError or OverflowError
        for a value that msgpack cannot encode: then the request is still in flight.
        """
        self._check_in_flight(msgid)
        frame = self._writer.write((RESPONSE, msgid, None, result))
        refusal = self._writer.refusal(frame)
        if refusal is None:
            self._answer(msgid, frame)
        else:
            self.fail(msgid, _error("too_long", f"the result cannot be sent: {refusal}"))

    def fail(self, msgid: int, error: dict[str, Any]) -> None:
        """Answer a request in flight with an error. Raises RuntimeError if it is not in flight."""
        self._check_in_flight(msgid)
        self._answer(msgid, self._writer.write((RESPONSE, msgid, error, None)))

    def _refuse_fault(self, fault: Fault) -> None:
        if fault.msgid is not None:
            self._refuse(fault.msgid, "invalid_request", fault.reason)
        self._violate(fault.reason)

    def _admit(self, msgid: int) -> bool:
        """Return whether a new request is accepted. If not, it is answered here."""
        limit = self.limits.max_in_flight
        if msgid in self._in_flight:
            self._refuse(msgid, "duplicate_id", f"msgid {msgid} is in flight")
            return False
        if len(self._in_flight) >= limit:
            self._refuse(
                msgid,
                "queue_full",
                f"{limit} requests of this connection are in flight",
                retryable=True,
                retry_after_ms=RETRY_AFTER_MS,
            )
            return False
        self._in_flight.add(msgid)
        return True

    def _check_in_flight(self, msgid: int) -> None:
        if msgid not in self._in_flight:
            raise RuntimeError(f"no request with msgid {msgid} is in flight")

    def _answer(self, msgid: int, frame: bytes) -> None:
        self._in_flight.remove(msgid)
        if not self.must_close:
            self._out.append(frame)

    def _refuse(self, msgid: int, code: str, message: str, **more: Any) -> None:
        error = _error(code, message, **more)
        self._out.append(self._writer.write((RESPONSE, msgid, error, None)))


class ClientProtocol(_Side):
    """The client's side of a connection, by the table at the top of this module."""

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        super().__init__(limits, reads=limits, writes=limits.of_requests)
        self._last_msgid = 0

    def request(self, method: str, params: list[Any]) -> int:
        """Send a Request and return its msgid.

        Raises InvalidRequestError for a message that a server with these limits would refuse (then
        nothing is sent), ProtocolError after a violation.
        """
        if self.violation is not None:
            raise ProtocolError(f"the server broke the protocol: {self.violation}")
        msgid = self._next_msgid()
        try:
            frame = self._writer.write((REQUEST, msgid, method, params))
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequestError(f"{method} cannot be sent: {error}") from error
        refusal = self._writer.refusal(frame)
        if refusal is not None:
            raise InvalidRequestError(f"{method} cannot be sent: {refusal}")
        self._out.append(frame)
        self._last_msgid = msgid
        self._in_flight.add(msgid)
        return msgid

    def receive(self, data: bytes) -> list[RpcResponse | RpcNotification]:
        """Return the messages that these bytes complete, in order. Raises nothing for any bytes."""
        events: list[RpcResponse | RpcNotification] = []
        if self.must_close:
            return events
        for frame in self._reader.read(data):
            event = _message_of(frame)
            if type(event) is RpcNotification:
                events.append(event)
            elif type(event) is RpcResponse and event.msgid in self._in_flight:
                self._in_flight.remove(event.msgid)
                events.append(event)
            else:
                self._violate(_why_no_client_takes(event))
                return events
        if self._reader.fault is not None:
            self._violate(self._reader.fault.reason)
        return events

    def _next_msgid(self) -> int:
        msgid = self._last_msgid % MAX_MSGID + 1
        while msgid in self._in_flight:
            msgid = msgid % MAX_MSGID + 1
        return msgid


def _why_no_client_takes(event: RpcMessage | Fault) -> str:
    if isinstance(event, Fault):
        return event.reason
    if isinstance(event, RpcResponse):
        return f"a Response to msgid {event.msgid}, which is not in flight"
    return "a Request, which only a client sends"


def _error(code: str, message: str, *, retryable: bool = False, **more: Any) -> dict[str, Any]:
    return {"code": code, "message": message, "retryable": retryable, **more}
