"""`Client`: a batcher that runs elsewhere on this machine, behind a unix socket."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from typing_extensions import Unpack, override

from ...calls.any_batcher import AnyBatcher
from ...calls.prefix_info import Prefixes
from ...calls.questions import ListPrefixes, ReadHealth, ReadStatistics, Reload
from ...calls.statistics import Health
from ...calls.telemetry import Handler, Telemetry
from ...errors.checks import OPTION
from ...params.batcher_options import BatcherOptions
from ...params.config import bad_value, check_path
from ..protocol.address import default_socket_path
from ..protocol.sidecar_statistics import SidecarStatistics
from ..replay.remote_service import attach_and_watch
from .client_service import ClientService

__all__ = ["Client", "ReloadOptions"]

_CONNECT_TIMEOUT = 10.0
_ABSENT_TIMEOUT = 1.0
"""Seconds that `start` waits for a socket that no process listens on, until a sidecar starts."""

_LONGEST_PATH = 107  # bytes of a unix socket's address


class ReloadOptions(BatcherOptions, total=False):
    """The keywords of `reload`: another model or system prompt, and the options of a batcher."""

    model: str
    system_prompt: str | None


class Client(AnyBatcher):
    """The model of a sidecar (`pybatcher serve`), with the methods of a `Batcher`.

        async with Client("/run/user/1000/pybatcher.sock") as client:
            answer = await client.generate("Once upon a time", max_tokens=64)

    path: path of the sidecar's socket; None: $PYBATCHER_SOCKET, or pybatcher.sock in
        $XDG_RUNTIME_DIR, the default of `pybatcher serve`.
    idempotent: calls in flight when the connection is lost are sent again over the next one, with
        the tokens they have, and give the same output as without the loss. False: they fail with
        ConnectionLostError, and no call runs twice.
    connect_timeout: seconds that `start`, and a call without a connection, wait for one before they
        raise ConnectionLostError. None: 10, but `start` waits only 1 for a socket that does not
        exist or that no process listens on.

    Many calls share the connection. If it is lost, a new one is made for the next call, or for
    attached handlers. `statistics`, `health` and `prefixes` fetch their values, so they must be
    awaited; they are those of the sidecar and of all its clients. `attach` gets the events of all
    clients too, with times of the sidecar's clock, and no events while there is no connection.
    `health` raises ConnectionLostError without a sidecar. Prefixes are added again after a
    reconnect, and the sidecar drops them when the client closes.

    A client belongs to the event loop and to the process that started it. Raises ConfigError for
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
        return attach_and_watch(self._telemetry, handler, self._watch)

    @override
    async def prefixes(self) -> Prefixes:
        return await self._ask(ListPrefixes())

    @override
    async def statistics(self) -> SidecarStatistics:
        statistics = await self._ask(ReadStatistics())
        assert isinstance(statistics, SidecarStatistics)
        return statistics

    @override
    async def health(self) -> Health:
        if self._service is None or self._closed:
            return self.own_health()
        return await self._ask(ReadHealth())

    def own_health(self) -> Health:
        """Return the health of the client alone, without asking the sidecar."""
        if self._closed:
            return Health("closed", "the client was closed")
        if self._service is None:
            return Health("new", "the client was not started")
        return Health("ready", "the client was started")

    async def reload(self, **changes: Unpack[ReloadOptions]) -> dict[str, Any]:
        """Have the sidecar open another model, or the same with other options.

        changes: `model`, `system_prompt` and options of a `Batcher`, by name; all others stay
            unchanged. The old worker finishes the requests in flight.

        Returns the description of the new worker once it serves. Raises the errors of opening a
        batcher with these changes (ConfigError, ModelFormatError, ...); then the old one continues.
        """
        return await self._ask(Reload(changes))

    @property
    @override
    def model_name(self) -> str:
        return str(self._running_service().greeting.get("model", "unknown"))

    @property
    def limits(self) -> Mapping[str, Any]:
        """The limits of the sidecar, by name. Raises BatcherClosedError before `start`."""
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
