"""`Client`: a batcher that runs elsewhere on this machine, behind a unix socket."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from typing_extensions import override

from ...calls.any_batcher import AnyBatcher
from ...calls.prefix_info import Prefixes
from ...calls.questions import ListPrefixes, ReadHealth, ReadStatistics, Reload
from ...calls.statistics import Health
from ...calls.telemetry import Handler, Telemetry
from ...config import bad_value, check_path
from ...errors.checks import OPTION
from ..protocol.address import default_socket_path
from ..protocol.sidecar_statistics import SidecarStatistics
from ..replay.remote_service import attach_and_watch
from .client_service import ClientService

__all__ = ["Client"]

_CONNECT_TIMEOUT = 10.0
_ABSENT_TIMEOUT = 1.0
"""Seconds for a socket that nobody listens on: a sidecar that is just being started makes it."""

_LONGEST_PATH = 107  # bytes; of a unix socket's address


class Client(AnyBatcher):
    """The model of a sidecar (`pybatcher serve`), with the methods of a `Batcher`.

        async with Client("/run/user/1000/pybatcher.sock") as client:
            answer = await client.generate("Once upon a time", max_tokens=64)

    path: of the sidecar's socket; None: $PYBATCHER_SOCKET, or pybatcher.sock in
        $XDG_RUNTIME_DIR, which is where `pybatcher serve` puts it.
    idempotent: what is in flight when the connection is lost is sent again over the next one,
        with the tokens it has, and goes on with those it would have had. False: it fails with
        ConnectionLostError and never runs twice.
    connect_timeout: seconds that `start`, and a call without a connection, wait for one before
        they raise ConnectionLostError. None: 10, but `start` waits only 1 for a socket that is
        not there or that nobody listens on.

    Many calls share the connection. If it is lost it is made anew when there is a call for it,
    or handlers are attached. What `statistics`, `health` and `prefixes` say has to be fetched, so
    they are to be awaited. Prefixes that were added are added again after a reconnect, and the
    sidecar drops them when the client closes.

    Belongs to the event loop and to the process it was started in. Raises ConfigError for
    arguments that cannot work.
    """

    _own_name = "client"

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        idempotent: bool = False,
        connect_timeout: float | None = None,
    ) -> None:
        super().__init__()
        self._path = _check_path(path)
        self._idempotent = OPTION.flag("idempotent", idempotent)
        self._absent_timeout = _ABSENT_TIMEOUT if connect_timeout is None else math.inf
        if connect_timeout is None:
            connect_timeout = _CONNECT_TIMEOUT
        self._connect_timeout = _check_connect_timeout(connect_timeout)
        self._telemetry = Telemetry(time.monotonic)

    @override
    async def _start_service(self) -> ClientService:
        service = ClientService(
            self._path,
            idempotent=self._idempotent,
            connect_timeout=self._connect_timeout,
            absent_timeout=self._absent_timeout,
            random=Random(),
            telemetry=self._telemetry,
        )
        try:
            await service.start()
        except BaseException:
            await service.close(drain=False, timeout=None)
            raise
        return service

    # -- questions --------------------------------------------------------------------------

    @override
    def attach(self, handler: Handler) -> Callable[[], None]:
        """Call `handler` with every event of the sidecar. Return what detaches it.

        As of `Batcher.attach`: the events are those of all its clients, and their times are of
        the sidecar's clock. What happens while there is no connection is not heard of.

        Raises ConfigError for what cannot be called so.
        """
        return attach_and_watch(self._telemetry, handler, self._watch)

    @override
    async def prefixes(self) -> Prefixes:
        """Return all prefixes that the sidecar keeps, for whomever."""
        return await self._ask(ListPrefixes())

    @override
    async def statistics(self) -> SidecarStatistics:
        """Return the counts since the sidecar's start, of all its clients."""
        statistics = await self._ask(ReadStatistics())
        assert isinstance(statistics, SidecarStatistics)
        return statistics

    @override
    async def health(self) -> Health:
        """Return whether the sidecar serves requests, and if not, why.

        Raises ConnectionLostError where there is no sidecar.
        """
        if self._service is None or self._closed:
            return self.own_health()
        return await self._ask(ReadHealth())

    def own_health(self) -> Health:
        """Return the health of the client alone, as far as it is known without asking."""
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
        return await self._ask(Reload(changes))

    @property
    @override
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

    def __repr__(self) -> str:
        return f"<Client of {self._path}: {self.own_health().status}>"

    @override
    def _running_service(self) -> ClientService:
        service = super()._running_service()
        assert isinstance(service, ClientService)
        return service

    def _watch(self) -> None:
        if self._service is not None:
            self._running_service().watch()


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
