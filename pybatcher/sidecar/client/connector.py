"""`Connector`: keeps one connection, and makes another when one is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Generic, TypeVar

from ...errors import BatcherClosedError, ConnectionLostError
from .backoff import Backoff

__all__ = ["Connector"]

_C = TypeVar("_C")


class Connector(Generic[_C]):
    """Connects while there are waiting calls, and tries again until it succeeds.

    Without a connection and without waiting calls it does nothing. For one event loop.

    path: the address in error messages.
    connect: tries once. After any exception of it, the next try follows.
    try_timeout: seconds that one try may take.
    is_wanted: returns True if a connection is needed without a waiting call.
    longest_delay: most seconds between two tries. Less than the wait of calls, so that each call
        sees a try.
    random: generator of the delays between tries.
    """

    def __init__(
        self,
        path: str,
        connect: Callable[[], Awaitable[_C]],
        *,
        try_timeout: float,
        random: Random,
        longest_delay: float = Backoff.LONGEST,
        is_wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._path = path
        self._connect = connect
        self._try_timeout = try_timeout
        self._is_wanted = is_wanted
        self._backoff = Backoff(random, longest_delay)
        self._loop = asyncio.get_running_loop()
        self._connection: _C | None = None
        self._waiters: set[asyncio.Future[_C]] = set()
        self._trying: asyncio.Task[None] | None = None
        self._try_began: float | None = None
        self._cause: BaseException | None = None
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """True while there is a connection."""
        return self._connection is not None

    async def connection(self, timeout: float) -> _C:  # noqa: ASYNC109
        """Return the connection; make one within `timeout` seconds if there is none.

        Raises ConnectionLostError, BatcherClosedError after `close`.
        """
        if self._connection is not None:
            return self._connection
        if self._closed:
            raise BatcherClosedError("the client is closed; make another")
        waiter: asyncio.Future[_C] = self._loop.create_future()
        self._waiters.add(waiter)
        self.wake()
        try:
            async with asyncio.timeout(timeout):
                return await waiter
        except TimeoutError:
            raise self._unreachable(timeout) from self._cause
        finally:
            self._waiters.discard(waiter)

    async def first_connection(self, timeout: float, absent_timeout: float) -> _C:  # noqa: ASYNC109
        """Return the connection as `connection` does, but do not wait long for a missing socket.

        absent_timeout: seconds to wait for a socket that does not exist, or that no process
            listens on. A server that listens may be busy for a while, and has `timeout` seconds.
        Raises ConnectionLostError, BatcherClosedError.
        """
        if absent_timeout >= timeout:
            return await self.connection(timeout)
        try:
            return await self.connection(absent_timeout)
        except ConnectionLostError as error:
            if isinstance(error.__cause__, (FileNotFoundError, ConnectionRefusedError)):
                raise
        return await self.connection(timeout - absent_timeout)

    def lost(self, error: BaseException) -> None:
        """Record that the connection was lost. error: the reason."""
        self._connection = None
        self._cause = error
        self.wake()

    def wake(self) -> None:
        """Connect if a connection is needed now."""
        if not self._is_idle and self._connection is None and self._trying is None:
            self._trying = self._loop.create_task(self._try(), name="pybatcher-connector")

    def close(self) -> None:
        """Stop trying; waiting calls get BatcherClosedError. Leaves the connection open."""
        self._closed = True
        self._connection = None
        if self._trying is not None:
            self._trying.cancel()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(BatcherClosedError("the client was closed meanwhile"))

    @property
    def _is_idle(self) -> bool:
        return self._closed or not (self._waiters or self._is_wanted())

    async def _try(self) -> None:
        try:
            while not self._is_idle:
                await asyncio.sleep(self._backoff.delay(self._loop.time()))
                self._try_began = self._loop.time()
                try:
                    async with asyncio.timeout(self._try_timeout):
                        self._connection = await self._connect()
                except Exception as error:
                    self._cause, self._try_began = error, None
                    continue
                for waiter in self._waiters:
                    if not waiter.done():
                        waiter.set_result(self._connection)
                return
        finally:
            self._trying = self._try_began = None

    def _unreachable(self, timeout: float) -> ConnectionLostError:
        now, began, cause = self._loop.time(), self._try_began, self._cause
        if began is not None and now - began >= min(timeout / 2, _SILENCE):
            cause = None  # the cause belongs to an earlier try
        why = "it is there and does not answer, it may be opening its model"
        if cause is not None and not isinstance(cause, TimeoutError):
            why = str(cause) or type(cause).__name__
        return ConnectionLostError(
            f"no connection to {self._path} within {timeout:g} s: {why}; is `pybatcher serve` "
            "running, with this path as its --socket? (connect_timeout is how long to wait)"
        )


_SILENCE = 0.5
"""Seconds without an answer after which errors name the silence as the reason."""
