"""`BatcherStatistics` and `Health`: how a batcher is doing, as frozen values."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..scheduling import SchedulerStatistics

if TYPE_CHECKING:
    from typing import Self

__all__ = ["BatcherStatistics", "Health"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherStatistics(SchedulerStatistics):
    """The scheduler's counts, and those of what is around it, since the start.

    `generated_tokens` are those that callers were given: of an output that a stop text ends in
    the middle of what a step gave, what came after it is none of them.
    `rejected` requests (queue full, or too long) were never submitted. The engine
    was restarted `restarts` times. KV blocks: total = free + cached + in use, as
    after the engine's last call.
    """

    generated_tokens: int
    rejected: int
    restarts: int
    kv_total_blocks: int
    kv_free_blocks: int
    kv_cached_blocks: int

    def __await__(self) -> Generator[None, None, Self]:
        return self
        yield  # a generator that waits for nothing


@dataclass(frozen=True, slots=True)
class Health:
    """Whether requests are served, and if not, why.

    ready: also while the engine is restarted, and requests wait for that. failed: for
    good. hung: a step or a restart does not end; if it ever does, ready again.
    """

    status: Literal["new", "ready", "closing", "closed", "failed", "hung"]
    reason: str

    @property
    def ok(self) -> bool:
        """Requests are served."""
        return self.status == "ready"

    def __await__(self) -> Generator[None, None, Self]:
        return self
        yield  # a generator that waits for nothing
