"""What the scheduler tells about requests: values, in the order they happened.

Every submitted request gets exactly one ending: a `Generated` with a
`finish_reason`, an `Answered`, an `Expired` or a `Failed`; or none, if its owner took it
back with `Scheduler.cancel` or `Scheduler.finish`.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..errors import PybatcherError
from .plan import SampledToken

__all__ = [
    "Admitted",
    "Answered",
    "Event",
    "Expired",
    "Failed",
    "Generated",
    "Preempted",
    "Resumed",
    "own_copy",
]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request's computing can begin; `cached_tokens` of its prompt need none.

    One that comes with output is admitted too, and not resumed.
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
    """What the request asked about its prompt. Ends it.

    logprobs: one for each of its targets. vector: what was pooled; None: nothing was to be.
    """

    request_id: int
    logprobs: tuple[float, ...]
    vector: array[float] | None


@dataclass(frozen=True, slots=True)
class Expired:
    """The request's deadline passed. Ends it."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The request cannot go on. Ends it."""

    request_id: int
    error: PybatcherError


@dataclass(frozen=True, slots=True)
class Preempted:
    """Others needed the request's KV; it waits at the front of the queue, with its tokens."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The request holds a sequence again; `recomputed_tokens` have to be computed once more.

    after_restart: it had lost its KV with the engine, not to others.
    """

    request_id: int
    recomputed_tokens: int
    after_restart: bool


Event = Admitted | Generated | Answered | Preempted | Resumed | Expired | Failed


def own_copy(error: PybatcherError) -> PybatcherError:
    """An error like this one, for one caller of several.

    An exception that is raised collects tracebacks: one object raised to many
    would show each of them the others'.
    """
    own = type(error)(*error.args)
    own.__cause__ = error.__cause__
    return own
