"""`BatcherStatistics` and `Health`: counts and state of a batcher, as frozen values."""

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
    """The scheduler's counts since the start, and those of the batcher around it.

    submitted: requests that were accepted into the queue. Each is counted in one of the next six.
    queued, running: requests that wait, and that run, now. queued_tokens: tokens of the waiting
        ones.
    completed, cancelled, expired, failed: requests that ended with a result, by their caller, by
        their timeout, with another error.
    steps: forward passes. computed_tokens: rows of all steps, including those of shared prefixes
        and drafts.
    prompt_tokens: prompt tokens of admitted requests. cached_tokens: those of them whose KV was
        present. image_tokens: those of them that stand for images.
    proposed_tokens, accepted_tokens: draft tokens that were verified, and that were accepted.
    preemptions: how often a request gave up its KV. recomputed_tokens: tokens computed again
        because of preemptions.
    replayed_tokens: tokens computed again after restarts of the engine, or for a request that came
        with output that was generated elsewhere.
    max_running: the most requests that run at once (`n_parallel`, at most `n_batch`). max_rows: the
        most rows of a step (`n_batch`).
    generated_tokens: tokens that were delivered to callers. Tokens that a step sampled after a stop
        text do not count.
    rejected: requests that were never submitted: the queue was full, or they were too long.
    restarts: how often the engine was restarted.
    kv_total_blocks, kv_free_blocks, kv_cached_blocks: total = free + cached + in use, as of the
        engine's last call.
    """

    generated_tokens: int
    rejected: int
    restarts: int
    kv_total_blocks: int
    kv_free_blocks: int
    kv_cached_blocks: int

    def advice(self, rows: float) -> str:
        """Return why requests wait although steps have room, and the option to change; "" if not.

        rows: the rows of a step, on average over the last seconds.
        """
        if not self.queued or not self.max_running or rows > _FULL * self.max_rows:
            return ""
        why = f"{self.queued:,} wait while steps have {rows:.0f} of {self.max_rows:,} rows: "
        if self.running >= self.max_running:
            return f"{why}all {self.max_running} places are taken; raise n_parallel"
        taken = self.kv_total_blocks - self.kv_free_blocks - self.kv_cached_blocks
        if taken > _FULL * self.kv_total_blocks:
            return f"{why}KV is full; raise n_ctx, or set kv_dtype='int8'"
        return ""

    def __await__(self) -> Generator[None, None, Self]:
        return self
        yield  # makes this a generator; never reached


_FULL = 0.8
"""The share of rows, or of KV blocks, from which on there is no room to speak of."""


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a batcher: whether requests are served, and if not, why.

    status: "ready": requests are served, or wait while the engine is restarted. "failed": the
        engine has failed for good. "hung": a step or a restart does not end; if it ends after all,
        the status is "ready" again. "new", "closing", "closed": before, during the end of, and
        after the service.
    reason: the status in words.
    """

    status: Literal["new", "ready", "closing", "closed", "failed", "hung"]
    reason: str

    @property
    def ok(self) -> bool:
        """True if requests are served."""
        return self.status == "ready"

    def __await__(self) -> Generator[None, None, Self]:
        return self
        yield  # makes this a generator; never reached
