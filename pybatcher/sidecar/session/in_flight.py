"""`InFlight`: a request of one connection until its Response. `InFlightOutput`: an output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from typing_extensions import override

from ...calls.backpressure import Backpressure
from ...calls.completion import Piece
from ...calls.reply import Reply, Result
from ...calls.telemetry import CallCounts
from ...errors import PybatcherError
from ..protocol.flow import Flow
from ..protocol.limits import Limits
from ..protocol.tenant import with_tenant
from ..protocol.wire import RequestId, WireCall, completion_to_wire, error_to_wire

__all__ = ["Connection", "InFlight", "InFlightOutput"]

# the holder of a pause; the output itself as the holder would be a reference cycle
_UNREAD = object()


class Connection(Protocol):
    """The methods of a connection that a request in flight needs."""

    @property
    def may_send(self) -> bool:
        """True while the client reads its messages; otherwise deltas should wait."""

    def notify(self, method: str, params: list[Any]) -> None:
        """Send a Notification."""

    def respond(self, request: InFlight, error: dict[str, Any] | None, result: object) -> None:
        """Send the Response and end the request."""

    def fail_unexpectedly(self, request: InFlight, defect: Exception) -> None:
        """Send a Response with the error of a defect, and end the request."""


class InFlight:
    """One request. It ends once, with its Response, whatever order events come in.

    id: the id of the request, chosen by the client.
    task: the task that works for it here, if any.
    backpressure: paused while the client reports that its answer is not read.
    counts: the tokens and times of the request for the access log; None: it is not logged.
    """

    counts: CallCounts | None = None

    def __init__(self, msgid: int, id: RequestId, method: str) -> None:
        self.msgid = msgid
        self.id = id
        self.method = method
        self.backpressure = Backpressure()
        self.task: asyncio.Task[None] | None = None
        self.has_ended = False

    def set_paused(self, paused: bool) -> None:
        """Pause or resume the request as the client's `aside` notification says."""
        if paused:
            self.backpressure.pause(self.id)
        else:
            self.backpressure.resume(self.id)

    def drop(self) -> None:
        """Cancel the task and mark it ended. Sends no Response; the caller does."""
        self.has_ended = True
        if self.task is not None:
            self.task.cancel()


class InFlightOutput(InFlight, Reply):
    """One `generate` or `chat`: a reply whose reader is at the other end of a connection."""

    backpressure: Backpressure

    def __init__(
        self,
        connection: Connection,
        msgid: int,
        asked: WireCall,
        cancel: Callable[[range], None],
        tenant: str = "",
        limits: Limits | None = None,
    ) -> None:
        """Make the reply of a call.

        cancel: drops submitted requests by their ids. tenant: the client's. limits: of messages.
        """
        Reply.__init__(self, streams=asked.stream)
        method = "generate" if asked.call.chat is None else "chat"
        InFlight.__init__(self, msgid, msgid if asked.id is None else asked.id, method)
        params = asked.call.params
        self.call = with_tenant(asked.call, tenant)
        self._connection = connection
        self._cancel = cancel
        n = 1 if params is None else params.n
        most_bytes = (limits or Limits()).max_delta
        self._flow = Flow(window=asked.window, n=n, most_bytes=most_bytes)
        self._request_ids: range | None = None
        self._response: tuple[dict[str, Any] | None, object] | None = None
        self._takes_more = True

    def submitted(self, request_ids: range) -> None:
        """Record the ids of the submitted requests; cancel them if the output was dropped."""
        self.task = None
        self._request_ids = request_ids
        if self.has_ended:  # it was dropped while it was being submitted
            self._cancel(request_ids)

    @override
    def drop(self) -> None:
        super().drop()
        if self._request_ids is not None and self._takes_more:
            self._cancel(self._request_ids)
        self._takes_more = False

    @override
    def push(self, piece: Piece) -> None:
        if not self._takes_more:
            return
        if self.counts is not None:
            self.counts.add_output(len(piece.token_ids))
        try:
            deltas = self._flow.push(piece, self._connection.may_send)
            for delta in deltas:
                self._connection.notify("delta", [self.id, delta])
            if deltas:
                self.backpressure.resume(_UNREAD)
            elif self._flow.n_waiting >= self._most_unread(self.backpressure):
                self.backpressure.pause(_UNREAD)
        except Exception as defect:  # the caller of `push` serves other requests too
            self._connection.fail_unexpectedly(self, defect)

    @override
    def finish(self, result: Result, index: int = 0) -> None:
        if not self._takes_more:
            return
        try:
            super().finish(result, index)
            completion = self.completion
            if completion is not None:
                self._end(None, completion_to_wire(completion))
        except Exception as defect:
            self._connection.fail_unexpectedly(self, defect)

    @override
    def fail(self, error: PybatcherError) -> None:
        if not self._takes_more:
            return
        try:
            # the frames of its traceback may refer to this output
            super().fail(error.with_traceback(None))
            self._end(error_to_wire(error), None)
        except Exception as defect:
            self._connection.fail_unexpectedly(self, defect)

    def acknowledge(self, seq: object) -> None:
        """Process the acknowledgement of the deltas up to `seq`, and send those that have room."""
        if self._flow.acknowledge(seq) and (
            self._response is not None or self._connection.may_send
        ):
            self.resume()

    def resume(self) -> None:
        """Send the deltas that may be sent now, and after the last one the Response, if due."""
        for delta in self._flow.take():
            self._connection.notify("delta", [self.id, delta])
        if self._flow.is_empty:
            self.backpressure.resume(_UNREAD)
        if self._response is not None and self._flow.is_empty:
            self._connection.respond(self, *self._response)

    def _end(self, error: dict[str, Any] | None, result: object) -> None:
        self._takes_more = False
        self._flow.end()
        self._response = (error, result)
        self.resume()
