"""`Client`: a batcher that runs elsewhere on this machine, behind a unix socket."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...calls.arguments import check_drain, check_timeout
from ...calls.call import HasCallService
from ...calls.generating_calls import GeneratingCalls
from ...calls.prefix_calls import PrefixCalls
from ...calls.prefix_info import PrefixInfo
from ...calls.scoring_calls import ScoringCalls
from ...calls.statistics import Health
from ...calls.telemetry import Handler, Telemetry
from ...config import bad_value, check_path
from ...errors import BatcherClosedError
from ...errors.checks import OPTION
from ..protocol.address import default_socket_path
from ..protocol.sidecar_statistics import SidecarStatistics
from .client_service import ClientService

if TYPE_CHECKING:
    from typing import Self

    from ...calls.any_batcher import AnyBatcher

__all__ = ["Client"]

_LONGEST_PATH = 107  # bytes; of a unix socket's address


class Client(HasCallService, GeneratingCalls, PrefixCalls, ScoringCalls):
    """The model of a sidecar (`pybatcher serve`), with the methods of a `Batcher`.

        async with Client("/run/user/1000/pybatcher.sock") as client:
            answer = await client.generate("Once upon a time", max_tokens=64)

    path: of the sidecar's socket; None: pybatcher.sock in $XDG_RUNTIME_DIR, which is where
        `pybatcher serve` puts it.
    idempotent: what is in flight when the connection is lost is sent again over the next one,
        with the tokens it has, and goes on with those it would have had. False: it fails with
        ConnectionLostError and never runs twice.
    connect_timeout: seconds that `start`, and a call without a connection, wait for one before
        they raise ConnectionLostError.

    Many calls share the connection. If it is lost it is made anew when there is a call for it,
    or handlers are attached. What `statistics`, `health` and `prefixes` say has to be fetched, so
    they are to be awaited. Prefixes that were added are added again after a reconnect, and the
    sidecar drops them when the client closes.

    Belongs to the event loop and to the process it was started in. Raises ConfigError for
    arguments that cannot work.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        idempotent: bool = False,
        connect_timeout: float = 10.0,
    ) -> None:
        self._path = _check_path(path)
        self._idempotent = OPTION.flag("idempotent", idempotent)
        self._connect_timeout = _check_connect_timeout(connect_timeout)
        self._telemetry = Telemetry(time.monotonic)
        self._starting = asyncio.Lock()
        self._closed = False
        self._service: ClientService | None = None
        self._abandon: weakref.finalize[..., Client] | None = None

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect. Started already, it does nothing.

        Raises ConnectionLostError; BatcherClosedError after `close`.
        """
        async with self._starting:
            if self._closed:
                raise BatcherClosedError("the client was closed; make another")
            if self._service is not None:
                return
            service = ClientService(
                self._path,
                idempotent=self._idempotent,
                connect_timeout=self._connect_timeout,
                random=Random(),
                telemetry=self._telemetry,
            )
            try:
                await service.start()
            except BaseException:
                await service.close(drain=False, patience=None)
                raise
            self._service = service
            self._abandon = weakref.finalize(self, service.abandon)

    async def close(self, drain: bool = True, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Take no more requests, finish the ones there are, hang up. The sidecar goes on.

        drain: False fails what is in flight with BatcherClosedError instead, and cancels it at
            the other end.
        timeout: seconds to drain; what is not finished then fails so too.
        Closing again, or while another task closes, waits for the same end.
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
        """Drains; after an exception it does not."""
        await self.close(drain=exc_type is None)

    # -- questions --------------------------------------------------------------------------

    def attach(self, handler: Handler) -> Callable[[], None]:
        """Have `handler` called with every event of the sidecar. Call what is returned to stop.

        As of `Batcher.attach`: the events are those of all its clients, and their times are of
        the sidecar's clock. What happens while there is no connection is not heard of.

        Raises ConfigError for what cannot be called so.
        """
        detach = self._telemetry.attach(handler)
        self._watch()

        def detach_and_unwatch() -> None:
            detach()
            self._watch()

        return detach_and_unwatch

    async def prefixes(self) -> tuple[PrefixInfo, ...]:
        """All that the sidecar keeps, for whomever. See `Batcher.prefixes`."""
        return await self._running_service().prefixes()

    async def statistics(self) -> SidecarStatistics:
        """Counts since the sidecar's start, of all its clients."""
        return await self._running_service().statistics()

    async def health(self) -> Health:
        """Whether the sidecar serves requests, and if not, why.

        Raises ConnectionLostError where there is no sidecar.
        """
        if self._service is None or self._closed:
            return self.own_health()
        return await self._service.health()

    def own_health(self) -> Health:
        """Of the client alone, as far as it is known without asking."""
        if self._closed:
            return Health("closed", "the client was closed")
        if self._service is None:
            return Health("new", "the client was not started")
        return Health("ready", "the client was started")

    async def reload(self, **changes: Any) -> dict[str, Any]:
        """Have the sidecar open another model, or the same with other options.

        changes: `model`, `system_prompt` and options of a `Batcher`, by name; what is not named
            stays as it is. Requests that are in flight end where they are.

        Returns, once the new one serves, what it says of itself. Raises what is wrong with the
        changes (ConfigError, ModelFormatError, ...); then all is as before.
        """
        return await self._running_service().reload(changes)

    @property
    def model_name(self) -> str:
        """Of the model, for people, as of the last connect or `reload` of this client.

        Raises BatcherClosedError before `start`.
        """
        return str(self._running_service().greeting.get("model", "unknown"))

    @property
    def limits(self) -> Mapping[str, Any]:
        """What the sidecar takes at most, by name. Raises BatcherClosedError before `start`."""
        said = self._running_service().greeting.get("limits")
        return dict(said) if isinstance(said, dict) else {}

    def _running_service(self) -> ClientService:
        if self._service is None:
            raise BatcherClosedError(
                "the client was not started; use `async with client` or `await client.start()`"
            )
        return self._service

    def _watch(self) -> None:
        if self._service is not None:
            self._service.watch()


def _check_path(path: object) -> str:
    wanted = f"a socket's path of 1 to {_LONGEST_PATH} bytes, none of them 0, or None"
    text = check_path("path", default_socket_path(os.environ) if path is None else path, wanted)
    if len(os.fsencode(text)) > _LONGEST_PATH:
        raise bad_value("path", text, wanted)
    return text


def _check_connect_timeout(value: object) -> float:
    wanted = "seconds above 0"
    longest = sys.float_info.max
    return OPTION.number("connect_timeout", value, 0.0, longest, above=True, wanted=wanted)


if TYPE_CHECKING:
    _a_batcher: type[AnyBatcher] = Client
