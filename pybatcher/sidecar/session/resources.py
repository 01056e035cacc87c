"""`SessionResources`: what one connection has at a backing beside its requests. It goes with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from ...calls.prefix_info import PrefixInfo
from ...calls.telemetry import Handler
from ...errors import PybatcherError
from .service import SidecarService

__all__ = ["SessionResources"]


class SessionResources:
    """The prefixes that it has added and not removed, and whether it watches events.

    handler: gets the events while it does.
    tenant: see `tenant_of`.
    """

    def __init__(self, backing: SidecarService, handler: Handler, tenant: str = "") -> None:
        self.tenant = tenant
        self._backing = backing
        self._handler = handler
        self._prefixes: Counter[tuple[str, str | None]] = Counter()
        self._detach: Callable[[], None] | None = None

    async def add_prefix(self, prefix: object, name: str | None, space: str | None) -> PrefixInfo:
        """See `Batcher.add_prefix`."""
        info = await self._backing.add_prefix(prefix, name, space)
        self._prefixes[str(info.name), space or None] += 1
        return info

    async def remove_prefix(self, name: str, space: str | None) -> None:
        """See `Batcher.remove_prefix`. Whoever added it."""
        await self._backing.remove_prefix(name, space)
        self._prefixes -= Counter([(name, space or None)])

    def watch(self, wanted: bool) -> None:
        """Hear of events, or no more."""
        if wanted and self._detach is None:
            self._detach = self._backing.attach(self._handler)
        elif not wanted and self._detach is not None:
            self._detach()
            self._detach = None

    @property
    def has_prefixes(self) -> bool:
        """There is something that takes a while to give back."""
        return bool(self._prefixes)

    async def remove_prefixes(self) -> None:
        """Undo every `add_prefix` that is left."""
        left = list(self._prefixes.elements())
        self._prefixes.clear()
        for name, space in left:
            with suppress(PybatcherError):  # somebody else has removed it, or all is over
                await self._backing.remove_prefix(name, space)
