"""`ClientService`: serves the calls of a started client, with a `RemoteService` and its link."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any, TypeVar

from typing_extensions import override

from ...calls.arguments import check_timeout
from ...calls.call import Call, CallOptions, Question
from ...calls.lifecycle import RunningService
from ...calls.questions import AddPrefix, Describe, Reload
from ...calls.reply import Reply
from ...calls.telemetry import Handler, Telemetry
from ...errors import (
    BatcherClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRequestError,
    ProtocolError,
)
from ..protocol.limits import Limits
from ..replay.link import Link
from ..replay.pending_calls import PendingCalls
from ..replay.remote_service import RemoteService, attach_and_watch
from .backoff import Backoff
from .connector import Connector

__all__ = ["ClientService"]

T = TypeVar("T")


class ClientService(RunningService):
    """Sends calls of its own loop and process to the sidecar at the other end of a socket.

    A call without a connection waits for one, at most `connect_timeout` seconds. Calls in flight
    when the connection is lost are sent again over the next one if the client is `idempotent`; they
    wait for it equally long.

    Construct it on the event loop that it runs on. greeting: the answer of the other end to
        `hello`.
    """

    def __init__(
        self,
        path: str,
        *,
        idempotent: bool,
        connect_timeout: float,
        absent_timeout: float,
        random: Random,
        telemetry: Telemetry,
    ) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._path = path
        self._idempotent = idempotent
        self._connect_timeout = connect_timeout
        self._absent_timeout = absent_timeout
        self._telemetry = telemetry
        self._limits = Limits()
        self._numbers = count(1)
        self._remote = self._new_remote()
        self._connector: Connector[Link] = Connector(
            path,
            self._connect,
            try_timeout=connect_timeout,
            random=random,
            longest_delay=max(Backoff.FIRST, min(Backoff.LONGEST, connect_timeout / 4)),
            is_wanted=lambda: telemetry.has_handlers,
        )
        self._lost: asyncio.Future[ConnectionLostError] | None = None
        self._hang_up: Callable[[], None] | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._is_closing = False
        self._refusal = ""
        self.greeting: Mapping[str, Any] = {}
        """The answer of the other end to `hello`; empty before the first connection."""

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect. Raises ConnectionLostError if no sidecar answers in time."""
        await self._connector.first_connection(self._connect_timeout, self._absent_timeout)

    @override
    async def close(self, drain: bool, timeout: float | None) -> None:
        self.check_home()
        self._is_closing = True
        if drain:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._remote.pending.idle()
        self._end()
        if self._lost is not None:
            await asyncio.wait({self._lost})

    @override
    def abandon(self) -> None:
        if os.getpid() == self._pid:
            with suppress(RuntimeError):  # the loop is closed, and with it the connection
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._is_closing = True
        self._connector.close()
        error = "the client was closed before this request had ended"
        self._remote.pending.fail_all(BatcherClosedError(error))
        if self._hang_up is not None:
            self._hang_up()

    def check_home(self) -> None:
        """Raise an error in a process or loop other than the one that started the client."""
        if os.getpid() != self._pid:
            raise BatcherClosedError(
                f"the client was started in process {self._pid} and this is a fork of it, which "
                "must not write to its connection; make a client in each process, after the fork"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidRequestError(
                "the client was started in another event loop; call it there, start one in each "
                "loop, or use a BlockingClient"
            )

    # -- calls ------------------------------------------------------------------------------

    @override
    async def submit(self, call: Call, reply: Reply) -> range:
        remote, timeout = await self._ready(call.timeout)
        return await remote.submit(replace(call, timeout=timeout), reply)

    @override
    def cancel(self, request_ids: range) -> None:
        self._remote.cancel(request_ids)

    @override
    async def ask(self, question: Question[T]) -> T:
        sent: Any = question
        if isinstance(question, (CallOptions, AddPrefix)):
            remote, timeout = await self._ready(question.timeout)
            sent = replace(question, timeout=timeout)
        else:
            remote, _ = await self._ready()
        answer: T = await remote.ask(sent)
        if isinstance(question, Reload):
            greeting: dict[str, Any] = await remote.ask(Describe())
            self.greeting = greeting
        return answer

    @override
    def attach(self, handler: Handler) -> Callable[[], None]:
        return attach_and_watch(self._telemetry, handler, self.watch)

    # -- events -----------------------------------------------------------------------------

    def watch(self) -> None:
        """Subscribe to events, or unsubscribe, after handlers changed. From any thread; never
        waits.
        """
        with suppress(RuntimeError):  # the loop is closed: there are no more events
            self._loop.call_soon_threadsafe(self._watch_if_needed)

    def _watch_if_needed(self) -> None:
        self._remote.watch_if_needed()
        self._connector.wake()

    # -- the connection ---------------------------------------------------------------------

    async def _ready(self, timeout: float | None = None) -> tuple[RemoteService, float | None]:  # noqa: ASYNC109
        """Wait for a connection. Return the service over it, and the seconds left of `timeout`."""
        self.check_home()
        if self._is_closing:
            raise BatcherClosedError("the client is closed; make another")
        if self._remote.pending.link is not None:
            return self._remote, timeout
        called, allowed = self._loop.time(), check_timeout(timeout)
        if allowed is None:
            await self._connector.connection(self._connect_timeout)
            return self._remote, None
        try:
            await self._connector.connection(min(allowed, self._connect_timeout))
        except ConnectionLostError as error:
            if allowed > self._connect_timeout:
                raise
            raise DeadlineExceededError(f"{error}; or raise timeout") from error
        left = allowed - (self._loop.time() - called)
        if left <= 0:
            raise DeadlineExceededError(
                f"the connection took all of timeout = {allowed:g} s; raise it"
            )
        return self._remote, left

    async def _connect(self) -> Link:
        """Try once to connect, and give the link to the `RemoteService`."""
        link, greeting = await self._greet()
        theirs = _limits_in(greeting)
        if theirs != self._limits:  # connect again, with a link that has the other end's limits
            self._limits = theirs
            await self._hang_up_and_wait()
            link, greeting = await self._greet()
        lost = self._lost
        assert lost is not None
        if lost.done():
            raise lost.result()
        self.greeting = greeting
        self._remote.link_made(link)
        lost.add_done_callback(self._link_lost)
        return link

    async def _greet(self) -> tuple[Link, Mapping[str, Any]]:
        """Connect and send `hello`. Return the link and the answer."""
        lost: asyncio.Future[ConnectionLostError] = self._loop.create_future()
        link = Link(
            peer=str(self._path),
            limits=self._limits,
            on_notification=self._take,
            on_lost=lost.set_result,
        )
        self._refusal = ""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            await self._loop.sock_connect(sock, self._path)
            await self._loop.create_unix_connection(lambda: link, sock=sock)
        except BaseException:
            sock.close()
            raise

        def hang_up() -> None:
            link.close()
            with suppress(OSError):  # a fork may hold the socket too, so `close` would not end it
                sock.shutdown(socket.SHUT_RDWR)

        self._lost, self._hang_up = lost, hang_up
        try:
            greeting = await link.request("hello", [{"client": "pybatcher"}])
            if not isinstance(greeting, dict):
                raise ProtocolError(f"{self._path} answers `hello` with {type(greeting).__name__}")
        except BaseException as error:
            hang_up()
            if self._refusal and isinstance(error, ConnectionLostError):
                raise ConnectionLostError(f"the sidecar refuses: {self._refusal}") from error
            raise
        return link, greeting

    async def _hang_up_and_wait(self) -> None:
        assert self._hang_up is not None
        assert self._lost is not None
        self._hang_up()
        await asyncio.wait({self._lost})

    def _take(self, method: str, params: list[Any]) -> None:
        if method == "refused" and params:
            self._refusal = str(params[0])
        self._remote.take_notification(method, params)
        self._remote.watch_if_needed()  # in case a handler that raised was detached

    def _link_lost(self, lost: asyncio.Future[ConnectionLostError]) -> None:
        error = lost.result()
        self._remote.link_lost(error)
        self._connector.lost(error)
        self._reconnect_if_needed()

    def _new_remote(self) -> RemoteService:
        """Make a service whose calls have new numbers, so that a late `cancel` hits no other."""
        pending = PendingCalls(
            replays=self._idempotent, on_work=self._reconnect_if_needed, numbers=self._numbers
        )
        return RemoteService(pending, self._telemetry)

    def _reconnect_if_needed(self) -> None:
        """Reconnect for calls in flight without a connection; they fail if that is not possible."""
        pending = self._remote.pending
        if pending.link is None and pending.n_in_flight and self._reconnecting is None:
            self._reconnecting = self._loop.create_task(
                self._reconnect_or_fail(), name="pybatcher-reconnect"
            )

    async def _reconnect_or_fail(self) -> None:
        try:
            await self._connector.connection(self._connect_timeout)
        except BatcherClosedError:
            pass  # `close` ends all calls
        except ConnectionLostError as error:
            before, self._remote = self._remote, self._new_remote()
            self._remote.take_prefixes_of(before)
            before.link_lost(error, final=True)
        finally:
            self._reconnecting = None


def _limits_in(greeting: Mapping[str, Any]) -> Limits:
    """Return the limits of the other end. Raises ConfigError for limits out of range."""
    said = greeting.get("limits")
    if not isinstance(said, dict):
        return Limits()
    names = ("max_frame", "max_depth", "max_in_flight", "image_bytes")
    return Limits(**{name: said[name] for name in names if name in said})
