"""`BlockingClient`: the client for code without asyncio, from any number of threads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from typing_extensions import Unpack, override

from ...calls.prefix_info import Prefixes
from ...calls.statistics import Health
from ...calls.threads.calls import BlockingCalls
from ..protocol.sidecar_statistics import SidecarStatistics
from .client import Client, ReloadOptions

__all__ = ["BlockingClient"]


class BlockingClient(BlockingCalls[Client]):
    """A `Client` on an event loop and a thread of its own. Its methods wait and return.

        with BlockingClient("/run/user/1000/pybatcher.sock") as client:
            answer = client.generate("Once upon a time", max_tokens=64)

    The first call starts it, if it was not started by `with` or `start`. Calls of several threads
    are served at the same time. A call that is interrupted (Ctrl-C) cancels its request. Without a
    `close`, the client is closed, without draining, when it is garbage-collected or the interpreter
    exits. Arguments and errors are those of `Client`.
    """

    _own_name = "client"

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        idempotent: bool = False,
        connect_timeout: float | None = None,
    ) -> None:
        self._configure(Client(path, idempotent=idempotent, connect_timeout=connect_timeout))

    @override
    def prefixes(self) -> Prefixes:
        return self._running_thread().call(self._batcher.prefixes())

    @override
    def statistics(self) -> SidecarStatistics:
        return self._running_thread().call(self._batcher.statistics())

    @override
    def health(self) -> Health:
        own = self._batcher.own_health()
        return self._running_thread().call(self._batcher.health()) if own.ok else own

    def reload(self, **changes: Unpack[ReloadOptions]) -> dict[str, Any]:
        """Have the sidecar open another model, or the same with other options.

        Arguments, result and errors are those of `Client.reload`.
        """
        return self._running_thread().call(self._batcher.reload(**changes))

    @property
    def limits(self) -> Mapping[str, Any]:
        """The limits of the sidecar, by name. Raises BatcherClosedError before `start`."""
        return self._batcher.limits
