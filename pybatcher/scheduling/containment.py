"""`contain` and `WorkFor`: an exception in the work for one request ends that request only.

The rule: an exception in the work for one request, or for one shared prefix, ends that owner with
a typed error and leaves the step to all others. Two kinds of exceptions are a failure of the
engine: those that belong to no owner, and EngineFailedError, which means that the engine itself is
broken. It is also raised if KV could not be freed.

    contain(action, end)                    runs the action, ends the owner at fault, runs it again
        with WorkFor("admit it", live):     names the owner of the work inside
            kv.seq_new(live.request.namespace)

    with typed_errors_of("submit it", request):    for an owner that is not accepted: only raises
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, TypeVar

from ..errors import EngineError, EngineFailedError, PybatcherError
from .prefix import SharedPrefix
from .request import LiveRequest, Request

__all__ = ["Owner", "RequestFault", "WorkFor", "contain", "typed_errors_of"]

Owner = LiveRequest | SharedPrefix | Request
"""The owner of work. A `Request` has not been queued yet."""

_Result = TypeVar("_Result")


class RequestFault(Exception):  # noqa: N818 - never shown to users
    """Carries an exception to `contain`, with the owner of the work in which it was raised.

    Never leaves the scheduler.
    """

    def __init__(self, owner: Owner, work: str, error: Exception) -> None:
        super().__init__(owner, work, error)
        self.owner = owner
        self.work = work
        self.error = error

    @property
    def typed(self) -> PybatcherError:
        """The error for the owner's caller: a PybatcherError itself, else an EngineError."""
        error = self.error
        if isinstance(error, PybatcherError):
            return error
        own = EngineError(
            f"{_name(self.owner)} failed, and nothing else did: the attempt to {self.work} "
            f"raised {error!r}"
        )
        own.__cause__ = error
        return own


class WorkFor:
    """Names the owner of the work in a `with` block; an exception raised there is its fault.

    work: a verb, for the error's message. In a loop over many owners, the owner is the loop's
    variable, which adds no cost per decode row, and the block has only the loop:

        with WorkFor("build the batch") as work:
            for work.owner in running:
                ...
    """

    __slots__ = ("owner", "work")

    def __init__(self, work: str, owner: Owner | None = None) -> None:
        self.work = work
        self.owner = owner

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None or self.owner is None or not isinstance(error, Exception):
            return
        if not isinstance(error, (RequestFault, EngineFailedError)):
            raise RequestFault(self.owner, self.work, error) from error


def contain(action: Callable[[], _Result], end: Callable[[RequestFault], None]) -> _Result:
    """Run `action`; each time one owner is at fault, `end` that one and run `action` again.

    `action` must be able to start again after the changes that it has made. It runs at most once
    for each owner, and once more: an owner that is at fault again after its end is a defect of
    the scheduler, and its exception is raised unchanged.
    """
    at_fault: list[Owner] = []
    while True:
        try:
            return action()
        except RequestFault as fault:
            if any(owner is fault.owner for owner in at_fault):
                raise fault.error from None
            at_fault.append(fault.owner)
            end(fault)


@contextmanager
def typed_errors_of(work: str, owner: Owner) -> Iterator[None]:
    """Raise the typed error in place of an exception in the work for one owner.

    For an owner that is not accepted yet: there is nothing to end, and its caller waits.
    """
    try:
        yield
    except PybatcherError:
        raise
    except Exception as error:
        raise RequestFault(owner, work, error).typed from error


def _name(owner: Owner) -> str:
    if isinstance(owner, SharedPrefix):
        return f"the shared prefix of {len(owner.tokens)} tokens"
    request = owner if isinstance(owner, Request) else owner.request
    return f"request {request.request_id!r}"
