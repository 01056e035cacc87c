"""`AnyBatcher`: what a `Batcher` and a `Client` have in common, for code that takes either."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from .generating_calls import GeneratingCalls
from .prefix_calls import PrefixCalls
from .prefix_info import PrefixInfo
from .scoring_calls import ScoringCalls
from .statistics import BatcherStatistics, Health
from .telemetry import Handler

if TYPE_CHECKING:
    from typing import Self


__all__ = ["AnyBatcher"]


class AnyBatcher(GeneratingCalls, ScoringCalls, PrefixCalls, Protocol):
    """Whoever serves requests: a `Batcher` in this process, or a `Client` of a sidecar.

        async def summarise(batcher: pybatcher.AnyBatcher, text: str) -> str:
            return str(await batcher.generate(f"{text}\\nIn short:", max_tokens=64))

    For type checkers; what has these methods is one, and need not derive from it.

    What is asked about a batcher (`statistics`, `health`, `prefixes`) is there at once in
    process and has to be awaited over a socket, so here it is either:

        found = batcher.statistics()
        counts = await found if inspect.isawaitable(found) else found
    """

    async def start(self) -> None:
        """Begin to serve. Started already, it does nothing."""

    async def close(self, drain: bool = True, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Take no more requests, finish the ones there are, let go of everything.

        drain: False fails what is in flight with BatcherClosedError instead.
        timeout: seconds to drain; what is not finished then fails so too.
        """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def attach(self, handler: Handler) -> Callable[[], None]:
        """Have `handler` called with every event. Call what is returned to detach it."""

    @property
    def model_name(self) -> str:
        """Of the model, for people. Raises BatcherClosedError before `start`."""

    def prefixes(self) -> tuple[PrefixInfo, ...] | Awaitable[tuple[PrefixInfo, ...]]:
        """All prefixes that are kept."""

    def statistics(self) -> BatcherStatistics | Awaitable[BatcherStatistics]:
        """Counts since the start."""

    def health(self) -> Health | Awaitable[Health]:
        """Whether requests are served, and if not, why."""
