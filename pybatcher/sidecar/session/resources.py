"""`SessionResources`: prefixes and events of one connection, released at its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from ...calls.call import CallOptions, CallService, Question
from ...calls.questions import AddPrefix, RemovePrefix
from ...calls.telemetry import Handler
from ...errors import PybatcherError
from ..protocol.tenant import with_tenant

__all__ = ["SessionResources"]

T = TypeVar("T")


class SessionResources:
    """The prefixes that a connection has added and not removed, and its subscription to events.

    tenant: the tenant of the connection; "" in a worker, whose calls name their own.
    """

    def __init__(self, service: CallService, tenant: str = "") -> None:
        self.tenant = tenant
        self._service = service
        self._prefixes: Counter[tuple[str, str | None]] = Counter()
        self._detach: Callable[[], None] | None = None

    async def ask(self, question: Question[T]) -> T:
        """Ask the service, and record the prefixes that the question adds or removes."""
        if isinstance(question, CallOptions):
            question = with_tenant(question, self.tenant)
        if isinstance(question, RemovePrefix):
            # If it were cancelled half way, it would be unknown whether the prefix is still held.
            return await asyncio.shield(self._remove_prefix(question))
        answer = await self._service.ask(question)
        if isinstance(question, AddPrefix):
            name = getattr(answer, "name", None)
            self._prefixes[str(name), question.namespace or None] += 1
        return answer

    def watch(self, handler: Handler | None) -> None:
        """Begin to pass events to a handler, if none gets them yet; None: stop."""
        if handler is not None and self._detach is None:
            self._detach = self._service.attach(handler)
        elif handler is None and self._detach is not None:
            self._detach()
            self._detach = None

    async def _remove_prefix(self, question: RemovePrefix) -> Any:
        """Remove a prefix. If the connection ends meanwhile, it is not removed a second time."""
        held = self._prefixes & Counter([(question.name, question.namespace or None)])
        self._prefixes -= held
        try:
            return await self._service.ask(question)
        except BaseException:
            self._prefixes += held
            raise

    @property
    def has_prefixes(self) -> bool:
        """True if the connection holds prefixes, whose removal must be awaited."""
        return bool(self._prefixes)

    async def remove_prefixes(self) -> None:
        """Undo every remaining `add_prefix`."""
        left = list(self._prefixes.elements())
        self._prefixes.clear()
        for name, namespace in left:
            with suppress(PybatcherError):  # another client has removed it, or the service closes
                await self._service.ask(RemovePrefix(name=name, namespace=namespace))
