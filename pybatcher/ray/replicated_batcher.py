"""`ReplicatedBatcher`: the methods of a `Batcher`, answered by several replicas."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from ..calls.any_batcher import AnyBatcher
from ..calls.prefix_info import Prefixes
from ..calls.questions import Describe, ListPrefixes, ReadHealth, ReadStatistics
from ..calls.statistics import BatcherStatistics, Health
from ..calls.telemetry import Handler, Telemetry
from .replicas import Replicas
from .routed_service import RoutedService

__all__ = ["ReplicatedBatcher"]


class ReplicatedBatcher(AnyBatcher):
    """Replicas of one model as one batcher: `generate`, `stream`, `chat` and all others.

    If a replica dies, another continues with the same tokens after a pause. `add_prefix` and
    `remove_prefix` apply to the replicas that exist; a replica that starts later computes such a
    prompt like any other. `statistics` are sums without those of replicas that died; `attach` gets
    the events of the requests made here, and none of steps.

    replicas: a `Replicas`. For replicas of Ray Serve: `pybatcher.ray.batcher(handle)`.
    """

    _own_name = "batcher"

    def __init__(self, replicas: Replicas) -> None:
        super().__init__()
        self._replicas = replicas
        self._telemetry = Telemetry(time.monotonic)
        self._model = ""

    @override
    async def _start_service(self) -> RoutedService:
        service = RoutedService(self._replicas, self._telemetry)
        told: dict[str, Any] = await service.ask(Describe())
        self._model = str(told.get("model", "unknown"))
        return service

    @override
    def attach(self, handler: Handler) -> Callable[[], None]:
        return self._telemetry.attach(handler)

    @override
    async def prefixes(self) -> Prefixes:
        return await self._ask(ListPrefixes())

    @override
    async def statistics(self) -> BatcherStatistics:
        return await self._ask(ReadStatistics())

    @override
    async def health(self) -> Health:
        if self._closed:
            return Health("closed", "the batcher of replicas was closed")
        if self._service is None:
            return Health("new", "the batcher of replicas was not started")
        return await self._ask(ReadHealth())

    @property
    @override
    def model_name(self) -> str:
        self._running_service()
        return self._model

    def __repr__(self) -> str:
        return f"<ReplicatedBatcher of {self._model or 'replicas, not started'}>"
