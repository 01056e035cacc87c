"""`ClientService`: what a client is between start and close: a remote, and the link it goes over."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

from ...calls.arguments import check_timeout, typed
from ...calls.call import Call, CallOptions, CallService
from ...calls.inquiry import Embedding, Score
from ...calls.prefix_info import PrefixInfo
from ...calls.statistics import Health
from ...calls.stream import Reply
from ...calls.telemetry import Telemetry
from ...errors import (
    BatcherClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRequestError,
    ProtocolError,
)
from ..protocol.limits import Limits
from ..protocol.sidecar_statistics import SidecarStatistics
from ..replay.link import Link
from ..replay.pending_calls import PendingCalls
from ..replay.remote_service import RemoteService
from .connector import Connector

__all__ = ["ClientService"]


class ClientService(CallService):
    """Takes calls of its own loop and process to the sidecar at the other end of a socket.

    What is called without a connection waits for one, `connect_timeout` seconds at most. What is
    in flight when it is lost is sent again over the next one if it is `idempotent`, and then
    waits so long for that.

    Made on the event loop it is to run on.
    """

    def __init__(
        self,
        path: str,
        *,
        idempotent: bool,
        connect_timeout: float,
        random: Random,
        telemetry: Telemetry,
    ) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._path = path
        self._idempotent = idempotent
        self._connect_timeout = connect_timeout
        self._telemetry = telemetry
        self._limits = Limits()
        self._numbers = count(1)
        self._remote = self._new_relay()
        self._connector: Connector[Link] = Connector(
            path,
            self._connect,
            try_timeout=connect_timeout,
            random=random,
            is_wanted=lambda: telemetry.has_handlers,
        )
        self._lost: asyncio.Future[ConnectionLostError] | None = None
        self._hang_up: Callable[[], None] | None = None
        self._waiting_to_go_on: asyncio.Task[None] | None = None
        self._is_closing = False
        self._refusal = ""
        self.greeting: Mapping[str, Any] = {}
        """What the other end has said of itself."""

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect."""
        await self._connector.connection(self._connect_timeout)

    async def close(self, drain: bool, patience: float | None) -> None:
        """See `Client.close`."""
        self.check_home()
        self._is_closing = True
        if drain:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._remote.pending.idle()
        self._end()
        if self._lost is not None:
            await asyncio.wait({self._lost})

    def abandon(self) -> None:
        """Nobody holds the client any more. From any thread; never waits."""
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
        """Raise where this is not the process or not the loop that the client was started in."""
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

    @typed
    async def submit(self, call: Call, reply: Reply) -> range:
        """See `CallService.submit`."""
        remote, timeout = await self._ready(call.timeout)
        return await remote.submit(replace(call, timeout=timeout), reply)

    def cancel(self, request_ids: range) -> None:
        """See `CallService.cancel`."""
        self._remote.cancel(request_ids)

    @typed
    async def score(
        self, prompt: object, continuations: object, beside: CallOptions
    ) -> list[Score]:
        """See `Batcher.score`."""
        remote, timeout = await self._ready(beside.timeout)
        return await remote.score(prompt, continuations, replace(beside, timeout=timeout))

    @typed
    async def embed(self, texts: object, pooling: object, beside: CallOptions) -> list[Embedding]:
        """See `Batcher.embed`."""
        remote, timeout = await self._ready(beside.timeout)
        return await remote.embed(texts, pooling, replace(beside, timeout=timeout))

    @typed
    async def add_prefix(self, prefix: object, name: object, namespace: object) -> PrefixInfo:
        """See `Batcher.add_prefix`."""
        remote, _ = await self._ready()
        return await remote.add_prefix(prefix, name, namespace)

    @typed
    async def remove_prefix(self, name: object, namespace: object) -> None:
        """See `Batcher.remove_prefix`."""
        remote, _ = await self._ready()
        await remote.remove_prefix(name, namespace)

    @typed
    async def tokenize(self, content: object, is_chat: bool) -> tuple[int, ...]:
        """See `Batcher.tokenize`."""
        remote, _ = await self._ready()
        return await remote.tokenize(content, is_chat)

    @typed
    async def detokenize(self, token_ids: object) -> str:
        """See `Batcher.detokenize`."""
        remote, _ = await self._ready()
        return await remote.detokenize(token_ids)

    # -- questions --------------------------------------------------------------------------

    async def prefixes(self) -> tuple[PrefixInfo, ...]:
        """See `Batcher.prefixes`."""
        remote, _ = await self._ready()
        return await remote.prefixes()

    async def statistics(self) -> SidecarStatistics:
        """See `Batcher.statistics`."""
        remote, _ = await self._ready()
        return await remote.statistics()

    async def health(self) -> Health:
        """See `Batcher.health`."""
        remote, _ = await self._ready()
        return await remote.health()

    @typed
    async def reload(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """See `Client.reload`."""
        remote, _ = await self._ready()
        reloaded = await remote.reload(dict(changes))
        self.greeting = await remote.hello()
        return reloaded

    def watch(self) -> None:
        """Handlers have come or gone. From any thread; never waits."""
        with suppress(RuntimeError):  # the loop is closed: there are no more events
            self._loop.call_soon_threadsafe(self._watch_if_needed)

    def _watch_if_needed(self) -> None:
        self._remote.watch_if_needed()
        self._connector.wake()

    # -- the connection ---------------------------------------------------------------------

    async def _ready(self, timeout: float | None = None) -> tuple[RemoteService, float | None]:  # noqa: ASYNC109
        """What calls go over, once there is a connection, and what is left of their `timeout`."""
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
        """One try. It becomes the remote's link."""
        link, greeting = await self._greet()
        theirs = _limits_in(greeting)
        if theirs != self._limits:  # a link has to have those of the other end: once more
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
        """A connection on which the other end has said what it is."""
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
            with suppress(OSError):  # a fork may have it too: the other end is to hear of it
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
        self._remote.watch_if_needed()  # a handler that raised is none any more

    def _link_lost(self, lost: asyncio.Future[ConnectionLostError]) -> None:
        error = lost.result()
        self._remote.link_lost(error)
        self._connector.lost(error)
        self._go_on()

    def _new_relay(self) -> RemoteService:
        """With numbers that no other has had, so that a late `cancel` cannot meet another call."""
        pending = PendingCalls(replays=self._idempotent, on_work=self._go_on, numbers=self._numbers)
        return RemoteService(pending, self._telemetry)

    def _go_on(self) -> None:
        """See to it that what is in flight without a connection does not wait for ever."""
        pending = self._remote.pending
        if pending.link is None and pending.n_in_flight and self._waiting_to_go_on is None:
            self._waiting_to_go_on = self._loop.create_task(
                self._wait_to_go_on(), name="pybatcher-go-on"
            )

    async def _wait_to_go_on(self) -> None:
        try:
            await self._connector.connection(self._connect_timeout)
        except BatcherClosedError:
            pass  # who closes ends all calls
        except ConnectionLostError as error:
            before, self._remote = self._remote, self._new_relay()
            self._remote.take_prefixes_of(before)
            before.link_lost(error, final=True)
        finally:
            self._waiting_to_go_on = None


def _limits_in(greeting: Mapping[str, Any]) -> Limits:
    """Of the other end, where it says them. ConfigError for limits that there cannot be."""
    said = greeting.get("limits")
    if not isinstance(said, dict):
        return Limits()
    names = ("max_frame", "max_depth", "max_in_flight")
    return Limits(**{name: said[name] for name in names if name in said})
