"""`SidecarService`: what a session serves its clients from. `BatcherService`: from a batcher right here."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from importlib import metadata
from typing import Any

from ...batcher import Batcher
from ...calls.call import Call, CallOptions, CallService
from ...calls.inquiry import Embedding, Score
from ...calls.prefix_info import PrefixInfo
from ...calls.statistics import BatcherStatistics, Health
from ...calls.stream import Reply
from ...calls.telemetry import Handler
from ...errors import InvalidRequestError

__all__ = ["BatcherService", "SidecarService"]


class SidecarService(CallService):
    """Calls, and questions about who serves them. All on one event loop.

    What it raises are PybatcherErrors. It may be here or behind a connection.
    """

    @abstractmethod
    def hello(self) -> Awaitable[dict[str, Any]]:
        """`version`, `model` and `limits`, for a client that introduces itself."""

    @abstractmethod
    async def prefixes(self) -> tuple[PrefixInfo, ...]:
        """See `Batcher.prefixes`."""

    @abstractmethod
    async def statistics(self) -> BatcherStatistics:
        """See `Batcher.statistics`."""

    @abstractmethod
    async def health(self) -> Health:
        """See `Batcher.health`."""

    @abstractmethod
    def attach(self, handler: Handler) -> Callable[[], None]:
        """See `Batcher.attach`."""

    async def reload(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Go on with other options. Raises InvalidRequestError where that cannot be done."""
        raise InvalidRequestError("a reload is not for this process; ask `pybatcher serve`")


class BatcherService(SidecarService):
    """A started batcher of this process and this loop."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._service = batcher._running_service()

    async def hello(self) -> dict[str, Any]:
        """See `SidecarService.hello`."""
        batcher = self._batcher
        engine, scheduler = batcher._engine_config, batcher._scheduler_config
        return {
            "version": metadata.version("pybatcher"),
            "model": batcher.model_name,
            "limits": {
                "max_sequence_length": batcher.runtime.engine.max_sequence_length,
                "n_ctx": engine.n_ctx,
                "n_parallel": engine.n_parallel,
                "max_prefixes": scheduler.max_prefixes,
                "max_queue_requests": scheduler.max_queue_requests,
                "max_queue_tokens": scheduler.max_queue_tokens,
            },
        }

    async def submit(self, call: Call, reply: Reply) -> range:
        """See `CallService.submit`."""
        return await self._service.submit(call, reply)

    def cancel(self, request_ids: range) -> None:
        """See `CallService.cancel`."""
        self._service.cancel(request_ids)

    async def score(
        self, prompt: object, continuations: object, beside: CallOptions
    ) -> list[Score]:
        """See `Batcher.score`."""
        return await self._service.score(prompt, continuations, beside)

    async def embed(self, texts: object, pooling: object, beside: CallOptions) -> list[Embedding]:
        """See `Batcher.embed`."""
        return await self._service.embed(texts, pooling, beside)

    async def add_prefix(self, prefix: object, name: object, namespace: object) -> PrefixInfo:
        """See `Batcher.add_prefix`."""
        return await self._service.add_prefix(prefix, name, namespace)

    async def remove_prefix(self, name: object, namespace: object) -> None:
        """See `Batcher.remove_prefix`."""
        await self._service.remove_prefix(name, namespace)

    async def prefixes(self) -> tuple[PrefixInfo, ...]:
        """See `Batcher.prefixes`."""
        return self._batcher.prefixes()

    async def tokenize(self, content: object, is_chat: bool) -> tuple[int, ...]:
        """See `Batcher.tokenize`."""
        return await self._service.tokenize(content, is_chat)

    async def detokenize(self, token_ids: object) -> str:
        """See `Batcher.detokenize`."""
        return await self._service.detokenize(token_ids)

    async def statistics(self) -> BatcherStatistics:
        """See `Batcher.statistics`."""
        return self._batcher.statistics()

    async def health(self) -> Health:
        """See `Batcher.health`."""
        return self._batcher.health()

    def attach(self, handler: Handler) -> Callable[[], None]:
        """See `Batcher.attach`."""
        return self._batcher.attach(handler)
