"""`WaitingQueue`: requests without a sequence, in the order in which they are admitted."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter

from ..errors import QueueFullError
from .fair_turns import BySeniority, FairTurns
from .request import LiveRequest, Request

__all__ = ["WaitingQueue"]

_PACE_SAMPLES = 32
_DEFAULT_PACE = 1.0
_MIN_RETRY, _MAX_RETRY = 0.05, 60.0


class WaitingQueue:
    """Returned requests first, then tenants in turn, then the groups of each, then by seniority.

    A returned request (preempted, or alive after a restart) is admitted before all newcomers. A
    request that was paused is not (`append_again`).
    Tenants take turns (`FairTurns`). The tenant of a request is the first line of `Request.tenant`.
    Its groups take turns inside it: requests of a group have equal further lines and an equal
    namespace. Inside a group the earliest seniority is first.

    The number of newcomers and the number of their tokens are bounded. No operation visits every
    waiting request. The queue measures the seconds between admissions, from which it estimates
    `QueueFullError.retry_after`.
    """

    def __init__(self, max_requests: int, max_tokens: int, output_reserve: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._output_reserve = output_reserve
        self._returned: list[LiveRequest] = []  # by seniority
        self._waiting: OrderedDict[int, LiveRequest] = OrderedDict()  # newcomers by id, in order
        self._again: set[int] = set()  # newcomers that were queued before: they count for no limit
        self._turns = FairTurns(_tenant_of, self._new_tenant, max_requests)
        self._admitted_at: deque[float] = deque(maxlen=_PACE_SAMPLES)
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._returned) + len(self._waiting)

    def __iter__(self) -> Iterator[LiveRequest]:
        yield from self._returned
        yield from self._waiting.values()

    @property
    def tokens(self) -> int:
        """Number of tokens of newcomers: prompts, and outputs that they were submitted with."""
        return self._tokens

    @property
    def newcomers(self) -> Collection[LiveRequest]:
        """Requests that wait in turn, in the order in which they were queued."""
        return self._waiting.values()

    @property
    def returned(self) -> Sequence[LiveRequest]:
        """Requests that are admitted before all newcomers, by seniority."""
        return self._returned

    @property
    def waiting_since(self) -> float | None:
        """When the request that waits longest was submitted; None when none waits."""
        if self._returned:
            return min(live.submitted for live in self._returned)
        return next((live.submitted for live in self._waiting.values()), None)

    @property
    def head(self) -> LiveRequest | None:
        """The next request; None when none waits."""
        if self._returned:
            return self._returned[0]
        return self._turns.head

    def check_room(self, n_new: int, tenant: str = "") -> None:
        """Raise QueueFullError if a newcomer with `n_new` tokens would exceed a limit.

        tenant: that of the newcomer, as `Request.tenant`.
        One request of any length may wait in an empty queue. A tenant without a waiting request
        may exceed the limits that others have used up, as long as no more than twice
        `max_requests` wait.
        """
        tenant = tenant.partition("\n")[0]
        n_requests = len(self._waiting) - len(self._again) + 1
        n_tokens = self._tokens + n_new
        if tenant and not self._turns.has(tenant) and n_requests <= 2 * self._max_requests:
            return
        if n_requests > self._max_requests:
            raise self._full("max_queue_requests", self._max_requests, n_requests)
        if n_requests > 1 and n_tokens > self._max_tokens:
            raise self._full("max_queue_tokens", self._max_tokens, n_tokens)

    def append(self, live: LiveRequest) -> None:
        """Queue a newcomer."""
        live.num_queued_tokens = live.num_tokens
        self._turns.append(live)
        self._waiting[live.request.request_id] = live
        self._tokens += live.num_queued_tokens

    def append_again(self, live: LiveRequest) -> None:
        """Queue a request that was paused, as a newcomer that counts for no limit."""
        self.append(live)
        self._again.add(live.request.request_id)
        self._tokens -= live.num_queued_tokens
        live.num_queued_tokens = 0

    def come_back(self, live: LiveRequest) -> None:
        """Queue a request that lost its sequence, ahead of all newcomers."""
        insort(self._returned, live, key=attrgetter("seniority", "number"))

    def discard(self, live: LiveRequest) -> None:
        """Remove a request from the queue; do nothing if it is not there."""
        request_id = live.request.request_id
        if live in self._returned:
            self._returned.remove(live)
        elif self._waiting.get(request_id) is live:
            self._take_out(live)

    def admit(self, live: LiveRequest, now: float) -> None:
        """Remove a request that is admitted: the head, or a request that runs out of turn."""
        if live is not self.head:
            self.discard(live)
        elif self._returned:
            del self._returned[0]
        else:
            charge = live.promised_tokens(self._output_reserve)
            self._admitted_at.append(now)
            self._turns.pop(charge)
            self._take_out(live)

    def _take_out(self, live: LiveRequest) -> None:
        del self._waiting[live.request.request_id]
        self._again.discard(live.request.request_id)
        self._tokens -= live.num_queued_tokens

    def _new_tenant(self) -> FairTurns:
        return FairTurns(_group_of, lambda: BySeniority(self._waiting), self._max_requests)

    def _full(self, field: str, limit: int, wanted: int) -> QueueFullError:
        retry_after = self._retry_after()
        return QueueFullError(
            f"{field} is {limit} and this request would make it {wanted}; "
            f"try again in about {retry_after:.2f} s, or raise {field}",
            retry_after,
        )

    def _retry_after(self) -> float:
        """Return the seconds until half of the queue is admitted, at the measured pace.

        Half of the queue and not one place, because all callers that are refused now come back
        at that time.
        """
        times = self._admitted_at
        pace = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else _DEFAULT_PACE
        return min(max(pace * (len(self._waiting) + 1) / 2, _MIN_RETRY), _MAX_RETRY)


def _tenant_of(request: Request) -> str:
    return request.tenant.partition("\n")[0]


def _group_of(request: Request) -> str:
    return request.tenant + "\n" + request.namespace  # a TypeError unless both are texts
