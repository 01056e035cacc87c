"""`SchedulerStatistics`: counts since the start, and numbers of queued and running requests."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SchedulerStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """Counts of requests by state and ending, and of tokens.

    submitted = queued + running + completed + cancelled + expired + failed.
    Token counts include admitted requests only.
    queued_tokens: tokens of the queued requests: prompts, and outputs they were submitted with.
    image_tokens: those of `prompt_tokens` that stand for images.
    computed_tokens: rows of forward passes, with those of shared prefixes and of drafts.
    proposed_tokens: draft tokens that had rows. accepted_tokens: the accepted ones among them.
    recomputed_tokens: tokens computed again after `preemptions`.
    replayed_tokens: tokens computed again after restarts of the engine, or because a request was
        submitted with output that was sampled elsewhere.
    max_running: the most requests that run at once. max_rows: the most rows of a step.
    """

    queued: int
    queued_tokens: int
    running: int
    submitted: int
    completed: int
    cancelled: int
    expired: int
    failed: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    image_tokens: int
    computed_tokens: int
    proposed_tokens: int
    accepted_tokens: int
    preemptions: int
    recomputed_tokens: int
    replayed_tokens: int
    max_running: int
    max_rows: int
