"""`SchedulerEvent`: changes of requests, in the order in which they happen.

Every submitted request gets exactly one ending: a `Generated` with a `finish_reason`, an
`Answered`, an `Expired` or a `Failed`. A request that its owner removes with `Scheduler.cancel`,
`Scheduler.finish` or `Scheduler.fail` gets none.
"""

from __future__ import annotations

from array import array
from copy import copy
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..errors import PybatcherError
from .plan import SampledToken, TopLogprobs

__all__ = [
    "Admitted",
    "Answered",
    "Expired",
    "Failed",
    "Generated",
    "Preempted",
    "Resumed",
    "SchedulerEvent",
    "own_copy",
]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request has KV; `cached_tokens` of its prompt need no computing.

    Every request gets it once, even if it was submitted with output.
    """

    request_id: int
    cached_tokens: int


class Generated(NamedTuple):
    """The request's next token; with a `finish_reason` its last one."""

    request_id: int
    token: SampledToken
    finish_reason: Literal["stop", "length"] | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """The scores or the embedding of the request's prompt. Ends it.

    logprobs: of each of its targets. vector: float32 (hidden_size), or None without `pooling`.
    top_logprobs: of each of its targets; empty without `n_top`.
    """

    request_id: int
    logprobs: tuple[float, ...]
    vector: array[float] | None
    top_logprobs: tuple[TopLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Expired:
    """The request's deadline passed. Ends it."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The request failed with `error`. Ends it."""

    request_id: int
    error: PybatcherError


@dataclass(frozen=True, slots=True)
class Preempted:
    """The request lost its KV to others; it keeps its tokens and waits ahead of all newcomers."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The request has KV again, except for `recomputed_tokens`, which are computed again.

    after_restart: True if it lost its KV to a restart of the engine, not to a preemption.
    """

    request_id: int
    recomputed_tokens: int
    after_restart: bool


SchedulerEvent = Admitted | Generated | Answered | Preempted | Resumed | Expired | Failed


def own_copy(error: PybatcherError) -> PybatcherError:
    """Return an error like this one, for one caller of several.

    A raised exception collects tracebacks: one object raised to several callers would show each
    caller the tracebacks of the others.
    """
    own = copy(error)
    own.__cause__ = error.__cause__
    return own
