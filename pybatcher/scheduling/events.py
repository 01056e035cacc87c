"""What the scheduler tells about requests: values, in the order they happened.

Every submitted request gets exactly one ending: a `Generated` with a
`finish_reason`, an `Expired` or a `Failed`; or none, if its owner took it
back with `Scheduler.cancel` or `Scheduler.finish`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..errors import PybatcherError
from .plan import SampledToken

__all__ = ["Admitted", "Event", "Expired", "Failed", "Generated", "own_copy"]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request holds a sequence now; `cached_tokens` of its prompt need no computing."""

    request_id: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Generated:
    """The request's next token; with a `finish_reason` its last one."""

    request_id: int
    token: SampledToken
    finish_reason: Literal["stop", "length"] | None = None


@dataclass(frozen=True, slots=True)
class Expired:
    """The request's deadline passed. Ends it."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The request cannot go on. Ends it."""

    request_id: int
    error: PybatcherError


Event = Admitted | Generated | Expired | Failed


def own_copy(error: PybatcherError) -> PybatcherError:
    """An error like this one, for one caller of several.

    An exception that is raised collects tracebacks: one object raised to many
    would show each of them the others'.
    """
    own = type(error)(*error.args)
    own.__cause__ = error.__cause__
    return own
