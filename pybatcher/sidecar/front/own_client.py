"""`OwnClient`: the front as a batcher, for servers in the front's own process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from typing_extensions import override

from ...calls.any_batcher import AnyBatcher
from ...calls.arguments import check_name
from ...calls.call import Call, CallOptions, Question
from ...calls.lifecycle import RunningService
from ...calls.questions import ReadStatistics
from ...calls.reply import Reply
from ...calls.statistics import BatcherStatistics
from ...calls.telemetry import Handler
from ..protocol.tenant import own_name
from .front import Front

__all__ = ["OwnClient"]

T = TypeVar("T")
_Options = TypeVar("_Options", bound=CallOptions)


class OwnClient(AnyBatcher):
    """A client without a connection. Its calls outlive a worker, as all calls of the front do.

    Closing it has no effect on the front.
    """

    _own_name = "client"

    def __init__(self, front: Front) -> None:
        super().__init__()
        self._front = front

    @property
    @override
    def model_name(self) -> str:
        return self._front.model_name

    @override
    def attach(self, handler: Handler) -> Callable[[], None]:
        return self._front.attach(handler)

    @override
    async def statistics(self) -> BatcherStatistics:  # `Metrics` looks for the `async`
        return await self._ask(ReadStatistics())

    @override
    async def _start_service(self) -> RunningService:
        return _FrontService(self._front)


class _FrontService(RunningService):
    """Passes calls on to the front, each tenant or namespace as a tenant that no client is."""

    def __init__(self, front: Front) -> None:
        self._front = front

    @override
    async def submit(self, call: Call, reply: Reply) -> range:
        return await self._front.submit(_with_tenant(call), reply)

    @override
    def cancel(self, request_ids: range) -> None:
        self._front.cancel(request_ids)

    @override
    async def ask(self, question: Question[T]) -> T:
        if isinstance(question, CallOptions):
            question = _with_tenant(question)
        return await self._front.ask(question)

    @override
    def attach(self, handler: Handler) -> Callable[[], None]:
        return self._front.attach(handler)

    @override
    async def close(self, drain: bool, timeout: float | None) -> None:
        pass  # the front closes itself

    @override
    def abandon(self) -> None:
        pass


def _with_tenant(options: _Options) -> _Options:
    """Return the call with a tenant that no connection of the socket has, nor can name."""
    name = check_name("tenant", options.tenant) or check_name("namespace", options.namespace)
    return replace(options, tenant=own_name("http", name))
