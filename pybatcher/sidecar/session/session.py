"""`ServerSession`: one client of the sidecar. Turns requests into calls on a `CallService`.

A client that does not read delays no other, and takes no more memory than its requests in flight:
its deltas wait, merged (`flow.py`), and above a limit of unread answers its requests are not read
until it reads (`outgoing.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from typing_extensions import override

from ...access_log import LOGGER as ACCESS_LOGGER
from ...access_log import AccessLine
from ...calls.backpressure import CURRENT_BACKPRESSURE
from ...calls.call import CallService, Question
from ...calls.questions import Describe, Tokenize
from ...calls.telemetry import CURRENT_COUNTS, CallCounts, TelemetryEvent
from ...errors import BatcherClosedError, PybatcherError
from ..protocol.codecs import METHODS, Codec
from ..protocol.connection import Limits, RpcNotification, RpcRequest, ServerProtocol
from ..protocol.wire import RequestId, error_to_wire, event_to_wire, plain_error, read_call
from ..protocol.wire_fields import ASKED, short
from ..protocol.wire_images import read_references
from .images import SessionImages
from .in_flight import InFlight, InFlightOutput
from .incoming import Incoming
from .outgoing import Outgoing
from .peers import peer_credentials, peer_uid
from .resources import SessionResources

__all__ = ["Method", "ServerSession"]

_LOGGER = logging.getLogger("pybatcher.sidecar")

_LAST_READ = 5.0
"""Seconds that a client has to read the last answers before its connection is cut."""

_WHILE_CLOSING = frozenset({"cancel", "health", "hello", "statistics"})
"""The methods that are still served while new requests are refused."""

_CANCELLED = plain_error("cancelled", "the request was cancelled")

Answer = Callable[[], Awaitable[object]]

Method = Callable[[list[Any]], Awaitable[object]]
"""A method: called with a request's params, returns its result. Raises PybatcherErrors."""


class ServerSession(asyncio.Protocol):
    """The server's end of one connection, for one event loop.

    service: serves the calls.
    on_end: called once, when the connection is closed and no request is in flight.
    hello_limits: limits that `hello` returns besides those of the connection and the service.
    admit: called with the session and its transport when the connection is made. Returns None, or
        the reason for refusing the client, which is sent as the Notification `refused`.
    methods: methods besides those of every session, by name.
    tenant: the tenant of calls that name none; "" keeps the tenant that calls name.
    logs_access: log each call at its end if the logger "pybatcher.access" takes the lines.
    """

    def __init__(
        self,
        service: CallService,
        *,
        limits: Limits | None = None,
        on_end: Callable[[ServerSession], object],
        hello_limits: Mapping[str, Any] | None = None,
        admit: Callable[[ServerSession, asyncio.BaseTransport], str | None] | None = None,
        methods: Mapping[str, Method] | None = None,
        tenant: str = "",
        logs_access: bool = False,
        logger: logging.Logger = _LOGGER,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._service = service
        self._limits = limits or Limits()
        self._hello_limits = dict(hello_limits or {})
        self._on_end = on_end
        self._admit = admit
        self._methods = dict(methods or {})
        self._logger = logger
        self._logs_access = logs_access
        self._protocol = ServerProtocol(self._limits)
        self._resources = SessionResources(service, tenant)
        self._images = SessionImages(self._limits)
        self._in_flight: dict[RequestId, InFlight] = {}
        self._incoming = Incoming(self._take)
        self._outgoing = Outgoing(self._protocol, self._incoming)
        self._transport: asyncio.Transport | None = None
        self._uid: int | None = None  # of the client's process
        self._is_draining = False
        self._is_hanging_up = False
        self._abort_timer: asyncio.TimerHandle | None = None

    # -- for its owner ----------------------------------------------------------------------

    @property
    def n_in_flight(self) -> int:
        """Number of requests that have no Response yet."""
        return len(self._in_flight)

    @property
    def peer(self) -> str:
        """The client, for logs."""
        return _peer(self._transport)

    def notify(self, method: str, params: list[Any]) -> None:
        """Send the client a Notification; do nothing once the connection is closed."""
        if not self._is_hanging_up:
            self._protocol.notify(method, params)
            self._outgoing.flush_soon()

    def close_soon(self) -> None:
        """Refuse new requests, finish those in flight, then close the connection."""
        self._is_draining = True
        self._loop.call_soon(self._hang_up_if_done)

    def abort(self) -> None:
        """Close the connection now and cancel the requests in flight."""
        self._let_go()
        if self._transport is not None:
            self._transport.abort()

    # -- for the loop -----------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass
        self._uid = _uid(self._transport)
        self._incoming.open(self._transport)
        self._outgoing.open(self._transport)
        why = None if self._admit is None else self._admit(self, transport)
        if why is not None:
            self.notify("refused", [why])
            self._hang_up()
        self._hang_up_if_done()

    @override
    def data_received(self, data: bytes) -> None:
        self._incoming.feed(data)

    def _take(self, data: bytes) -> None:
        if self._is_hanging_up:
            return
        for event in self._protocol.receive(data):
            if isinstance(event, RpcRequest):
                self._take_request(event)
            else:
                self._take_notification(event)
        self._outgoing.flush_soon()  # the protocol answers some requests itself
        if self._protocol.must_close:
            self._logger.warning("%s is cut off: %s", self.peer, self._protocol.violation)
            self._hang_up()

    @override
    def eof_received(self) -> None:
        self._hang_up()  # a client that sends no more still reads its last answers

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._let_go()
        self._transport = None
        self._incoming.close()
        self._outgoing.close()
        self._images.clear()
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        if self._resources.has_prefixes:
            # The loop's reference to a task is weak; the future that this task awaits refers to it.
            self._loop.create_task(self._resources.remove_prefixes(), name="pybatcher-prefixes")
        self._on_end(self)

    @override
    def pause_writing(self) -> None:
        self._outgoing.paused()

    @override
    def resume_writing(self) -> None:
        self._outgoing.resumed()
        for request in list(self._in_flight.values()):
            if isinstance(request, InFlightOutput):
                request.resume()

    # a client that sends no more still reads its last answers

    @property
    def may_send(self) -> bool:
        """True while the client reads its messages; otherwise deltas should wait."""
        return self._outgoing.may_send

    def respond(self, request: InFlight, error: dict[str, Any] | None, result: object) -> None:
        """Send the Response and end the request."""
        if error is None:
            self._protocol.respond(request.msgid, result)
        else:
            self._protocol.fail(request.msgid, error)
        request.has_ended = True
        del self._in_flight[request.id]
        if request.counts is not None:
            self._log_access(request.method, request.id, request.counts, error)
        self._outgoing.flush_soon()
        if self._is_draining:
            self._loop.call_soon(self._hang_up_if_done)

    def fail_unexpectedly(self, request: InFlight, defect: Exception) -> None:
        """Log a defect and end the request with an error; other requests go on."""
        self._logger.error("request %s of %s failed", short(request.id), self.peer, exc_info=defect)
        if not request.has_ended:
            request.drop()
            self.respond(request, error_to_wire(defect), None)

    # -- requests ---------------------------------------------------------------------------

    def _take_request(self, request: RpcRequest) -> None:
        msgid, method, params = request
        try:
            if self._is_draining and method not in _WHILE_CLOSING:
                raise BatcherClosedError("the sidecar is ending; ask the next one")
            if method in ("generate", "chat"):
                self._generate(msgid, params, is_chat=method == "chat")
            elif method == "cancel":
                self._protocol.respond(msgid, self._cancel(params))
            elif (own := self._own_method(method)) is not None:
                self._answer_soon(InFlight(msgid, msgid, method), partial(own, params))
            elif method in METHODS:
                codec = METHODS[method]
                question, id = codec.read(params)
                if isinstance(question, Tokenize) and question.chat is not None:
                    content = read_references(question.content, self._images)
                    question = replace(question, content=content)
                named = InFlight(msgid, msgid if id is None else id, method)
                self._answer_soon(named, partial(self._asked, codec, question))
            else:
                known = ", ".join(sorted(self._method_names()))
                why = f"there is no method {short(method)}; there are: {known}"
                self._refuse(msgid, method, plain_error("unknown_method", why))
        except PybatcherError as error:
            self._refuse(msgid, method, error_to_wire(error))
        except Exception as defect:
            self._logger.exception("%s of %s failed", method, self.peer)
            self._refuse(msgid, method, error_to_wire(defect))

    def _take_notification(self, notification: RpcNotification) -> None:
        method, params = notification
        try:
            if method == "ack" and len(params) == 2:
                request = self._find(params[0])
                if isinstance(request, InFlightOutput):
                    request.acknowledge(params[1])
            elif method == "aside" and len(params) == 2:
                if (asked := self._find(params[0])) is not None:
                    asked.set_paused(ASKED.flag(params[1], "aside"))
            elif method == "cancel":
                self._cancel(params)
            elif method == "image":
                self._images.add(params)
        except PybatcherError as error:
            self._logger.debug("%s of %s: %s", method, self.peer, error)

    def _generate(self, msgid: int, params: list[Any], *, is_chat: bool) -> None:
        asked = read_call(params, is_chat=is_chat)
        if is_chat:
            content = read_references(asked.call.content, self._images)
            asked = replace(asked, call=replace(asked.call, content=content))
        tenant = self._resources.tenant
        output = InFlightOutput(self, msgid, asked, self._service.cancel, tenant, self._limits)
        if self._register(output):
            output.task = self._loop.create_task(self._submit(output))

    async def _submit(self, output: InFlightOutput) -> None:
        try:
            output.submitted(await self._service.submit(output.call, output))
        except PybatcherError as error:
            output.fail(error)
        except asyncio.CancelledError:
            self._end_if_cancelled_here(output)
            raise
        except Exception as defect:
            self.fail_unexpectedly(output, defect)

    async def _asked(self, codec: Codec[Any], question: Question[Any]) -> object:
        answer = await self._resources.ask(question)
        if (counts := CURRENT_COUNTS.get()) is not None:
            counts.add_prompts_of(answer)
        return codec.answer_to_wire(answer)

    async def _watch(self, params: list[Any]) -> bool:
        wanted = ASKED.flag(params[0] if params else None, "watch")
        self._resources.watch(self._tell if wanted else None)
        return wanted

    def _answer_soon(self, request: InFlight, answer: Answer) -> None:
        if self._register(request):
            request.task = self._loop.create_task(self._answer(request, answer))

    async def _answer(self, request: InFlight, answer: Answer) -> None:
        CURRENT_BACKPRESSURE.set(request.backpressure)
        CURRENT_COUNTS.set(request.counts)
        try:
            result = await answer()
            if not request.has_ended:
                self.respond(request, None, result)
        except PybatcherError as error:
            if not request.has_ended:
                self.respond(request, error_to_wire(error), None)
        except asyncio.CancelledError:
            self._end_if_cancelled_here(request)
            raise
        except Exception as defect:
            self.fail_unexpectedly(request, defect)

    def _register(self, request: InFlight) -> bool:
        """Add a request to those in flight. Return False, and refuse it, if its id is in use."""
        if request.id in self._in_flight:
            why = f"id {short(request.id)} is in flight on this connection; choose another"
            self._refuse(request.msgid, request.method, plain_error("duplicate_id", why))
            return False
        request.counts = self._new_counts()
        self._in_flight[request.id] = request
        return True

    def _refuse(self, msgid: int, method: str, error: dict[str, Any]) -> None:
        """Send the Response of a request that does not begin."""
        self._protocol.fail(msgid, error)
        if (counts := self._new_counts()) is not None:
            self._log_access(method, msgid, counts, error)

    def _new_counts(self) -> CallCounts | None:
        """Return the counts of a call that begins; None: the call is not logged."""
        is_logged = self._logs_access and ACCESS_LOGGER.isEnabledFor(logging.INFO)
        return CallCounts() if is_logged else None

    def _log_access(
        self,
        method: str,
        id: RequestId,
        counts: CallCounts,
        error: Mapping[str, Any] | None,
        outcome: str = "",
    ) -> None:
        """Log the end of a call. outcome: "" derives it from the error of the Response."""
        status = "ok" if error is None else error["code"]
        outcomes = {"ok": "finished", "cancelled": "cancelled"}
        AccessLine(
            protocol="socket",
            operation="call",
            route=method,
            counts=counts,
            status=status,
            outcome=outcome or outcomes.get(status, "error"),
            uid=self._uid,
            request_id=id,
        ).write()

    def _find(self, id: object) -> InFlight | None:
        """Return the request in flight with that id, or None; 1 is neither 1.0 nor True."""
        if type(id) is bytes:
            id = ASKED.text(id, "id")
        return self._in_flight.get(id) if isinstance(id, str) or type(id) is int else None

    def _cancel(self, params: Sequence[Any]) -> bool:
        """Cancel the request with the id in `params`, with a Response. Return False without one."""
        if len(params) != 1:
            raise ASKED.bad("the params of cancel", params, "[id]")
        request = self._find(params[0])
        if request is None:
            return False
        request.drop()
        self.respond(request, _CANCELLED, None)
        return True

    def _end_if_cancelled_here(self, request: InFlight) -> None:
        """Send the Response of a request whose task was cancelled, but not by the client."""
        if not request.has_ended:
            request.drop()
            self.respond(request, _CANCELLED, None)

    async def _hello(self, params: list[Any]) -> dict[str, Any]:
        told = await self._service.ask(Describe())
        limits = {
            "max_frame": self._limits.max_frame,
            "max_depth": self._limits.max_depth,
            "max_in_flight": self._limits.max_in_flight,
            "image_bytes": self._limits.image_bytes,
        }
        return {
            **told,
            "limits": {**told.get("limits", {}), **limits, **self._hello_limits},
            "methods": sorted(self._method_names()),
        }

    def _own_method(self, name: str) -> Method | None:
        """Return a method of this session alone. No stored method may refer to the session."""
        if name in self._methods:
            return self._methods[name]
        return {"hello": self._hello, "watch": self._watch}.get(name)

    def _method_names(self) -> set[str]:
        return {"generate", "chat", "cancel", "hello", "watch", *self._methods, *METHODS}

    def _tell(self, event: TelemetryEvent) -> None:
        """Send an event; a client that does not read its messages misses some."""
        if self._outgoing.may_send:
            self.notify("event", event_to_wire(event))

    # -- the end ----------------------------------------------------------------------------

    def _hang_up_if_done(self) -> None:
        if self._is_draining and not self._in_flight:
            self._hang_up()

    def _hang_up(self) -> None:
        """Send the last answers, and close when they are read, or after `_LAST_READ` seconds."""
        if self._is_hanging_up or self._transport is None:
            return
        self._let_go()
        self._outgoing.flush()
        self._transport.close()
        self._abort_timer = self._loop.call_later(_LAST_READ, self._transport.abort)

    def _let_go(self) -> None:
        """Cancel all requests in flight, each with a Response."""
        self._is_hanging_up = True
        self._resources.watch(None)
        requests = list(self._in_flight.values())
        self._in_flight.clear()
        for request in requests:
            request.drop()
            self._protocol.fail(request.msgid, _CANCELLED)
            if request.counts is not None:
                self._log_access(
                    request.method, request.id, request.counts, _CANCELLED, "disconnected"
                )


def _peer(transport: asyncio.Transport | None) -> str:
    """Return a name of the client for logs, with its process id if the kernel reports it."""
    sock = None if transport is None else transport.get_extra_info("socket")
    credentials = None if sock is None else peer_credentials(sock)
    return "a client" if credentials is None else f"process {credentials[0]}"


def _uid(transport: asyncio.Transport) -> int | None:
    """Return the user id of the client's process; None if the kernel does not report it."""
    sock = transport.get_extra_info("socket")
    return None if sock is None else peer_uid(sock)
