"""`Lifecycle`: start and end of batchers and clients."""

from __future__ import annotations

import asyncio
import os
import weakref
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, NoReturn

from ..errors import BatcherClosedError
from .arguments import check_drain, check_timeout
from .call import CallService

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Lifecycle", "RunningService", "not_copied"]


def not_copied(name: str) -> TypeError:
    """Return the error of a batcher or client that is copied or pickled."""
    return TypeError(
        f"a {name} cannot be copied or pickled, because it belongs to one process: make a {name} "
        "in each process, or let processes share a sidecar (`pybatcher serve`) by clients"
    )


class RunningService(CallService):
    """The service that `start` opens; it serves the calls of a batcher until it is closed."""

    @abstractmethod
    async def close(self, drain: bool, timeout: float | None) -> None:  # noqa: ASYNC109
        """Drain for at most `timeout` seconds, or fail all calls in flight; free everything."""

    @abstractmethod
    def abandon(self) -> None:
        """End without draining, from any thread: after garbage collection, or when Python exits."""


class Lifecycle(ABC):
    """Base of objects that are started, used with `async with`, drained and closed."""

    _own_name: ClassVar[str]
    """The name of the object in error messages."""

    def __init__(self) -> None:
        self._starting = asyncio.Lock()
        self._closed = False
        self._pid = os.getpid()
        self._service: RunningService | None = None
        self._abandon: weakref.finalize[..., Lifecycle] | None = None

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to serve; do nothing if started already.

        Raises BatcherClosedError after `close`, and ModelFormatError, ConfigError, EngineError or
        ConnectionLostError if it cannot start.
        """
        async with self._starting:
            if self._closed:
                raise BatcherClosedError(f"the {self._own_name} was closed; make another")
            if self._service is None:
                self._pid = os.getpid()
                self._service = await self._start_service()
                self._abandon = weakref.finalize(self, self._service.abandon)

    async def close(self, drain: bool = True, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Take no more requests, finish those in flight, free everything.

        drain: False fails the requests in flight with BatcherClosedError instead.
        timeout: seconds to drain; requests that are not finished then fail with BatcherClosedError.
            A batcher waits as long again, and at least 5 s, for the step under way. If the step
            takes longer, its thread frees the engine when the step ends.

        Closing a client does not end its sidecar. Closing again, or while another task closes,
        waits for the same end.
        """
        drain, timeout = check_drain(drain), check_timeout(timeout)
        async with self._starting:
            self._closed = True
        if self._service is not None and self._abandon is not None:
            await self._service.close(drain, timeout)
            self._abandon.detach()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; drain unless an exception is under way. Do nothing in a fork of the process."""
        if os.getpid() == self._pid:
            await self.close(drain=exc_type is None)

    def __reduce__(self) -> NoReturn:
        raise not_copied(self._own_name)

    # -- inside -----------------------------------------------------------------------------

    @abstractmethod
    async def _start_service(self) -> RunningService:
        """Open the service. Raises the errors of `start`."""

    def _running_service(self) -> RunningService:
        """Return the service. Raises BatcherClosedError before `start`."""
        if self._service is None:
            name = self._own_name
            raise BatcherClosedError(
                f"the {name} was not started; use `async with {name}` or `await {name}.start()`"
            )
        return self._service
