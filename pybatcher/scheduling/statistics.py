"""`SchedulerStatistics`: counts since the start, and how many there are right now."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SchedulerStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatistics:
    """Requests that are where, requests that ended how, and tokens.

    submitted = queued + running + completed + cancelled + expired + failed.
    Token counts are of requests that were admitted; `computed_tokens` are rows
    of forward passes, those of shared prefixes and of drafts included.
    `proposed_tokens` are draft tokens that had rows, `accepted_tokens` the right ones.
    `recomputed_tokens` were computed again after `preemptions`, `replayed_tokens`
    after restarts of the engine, and where a request came with tokens of its output:
    of its prompt and those what had been computed when they were drawn, elsewhere.
    `queued_tokens` are those that requests came with, prompts and outputs.
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
    computed_tokens: int
    proposed_tokens: int
    accepted_tokens: int
    preemptions: int
    recomputed_tokens: int
    replayed_tokens: int
