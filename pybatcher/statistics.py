"""`BatcherStatistics` and `Health`: how a batcher is doing, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["BatcherStatistics", "Health"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherStatistics:
    """Requests that are where, requests that ended how, tokens and KV, since the start.

    submitted = queued + running + completed + cancelled + expired + failed;
    `rejected` ones (queue full, or too long) were never submitted. Token counts
    are of admitted requests; `computed_tokens` are rows of forward passes,
    those of a shared system prompt and of guesses included (`proposed_tokens`,
    of which `accepted_tokens` were right); `steps` are forward passes;
    `preemptions`: how often a request gave its KV up to others, and
    `recomputed_tokens`: what was computed again for that; `restarts`: of the
    engine. KV blocks: total = free + cached + in use, as after the engine's last
    call.
    """

    queued: int
    queued_tokens: int
    running: int
    submitted: int
    completed: int
    cancelled: int
    expired: int
    failed: int
    rejected: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    computed_tokens: int
    proposed_tokens: int
    accepted_tokens: int
    preemptions: int = 0
    recomputed_tokens: int = 0
    restarts: int = 0
    kv_total_blocks: int
    kv_free_blocks: int
    kv_cached_blocks: int


@dataclass(frozen=True, slots=True)
class Health:
    """Whether requests are served, and if not, why."""

    status: Literal["new", "ready", "closing", "closed", "failed"]
    reason: str

    @property
    def ok(self) -> bool:
        """Requests are served."""
        return self.status == "ready"
