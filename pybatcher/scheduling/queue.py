"""`WaitingQueue`: requests that hold no sequence, in the order of their turns."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from ..errors import QueueFullError
from .request import LiveRequest

__all__ = ["WaitingQueue"]

_PACE_SAMPLES = 32
_DEFAULT_PACE = 1.0
_MIN_RETRY, _MAX_RETRY = 0.05, 60.0


class WaitingQueue:
    """Returned requests first, then namespaces in turn, then by seniority in each.

    A returned request (preempted, or one that outlived a restart) goes before all newcomers.
    Namespaces take turns by start-time fair queueing (Goyal, Vin and Cheng 1996): each request is
    charged with its tokens, and the namespace that has been charged least is next. So one with a
    thousand requests does not delay another's first. In a namespace the earlier seniority goes
    first.

    Bounded by the number of newcomers and by the tokens they came with. No operation looks at
    every waiting request. The queue also measures the seconds between admissions, from which
    `QueueFullError.retry_after` is estimated.
    """

    def __init__(self, max_requests: int, max_tokens: int, output_reserve: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._output_reserve = output_reserve
        self._returned: list[LiveRequest] = []  # by seniority
        self._waiting: OrderedDict[int, LiveRequest] = OrderedDict()  # newcomers by id, in order
        self._namespaces: dict[str, _Namespace] = {}  # those with waiting requests
        self._turns: list[tuple[float, int, _Namespace]] = []  # a heap; may name empty ones
        self._charged: dict[str, float] = {}  # of namespaces that have left with a debt
        self._now_served = 0.0  # the start tag of the latest turn
        self._n_turns = 0
        self._admitted_at: deque[float] = deque(maxlen=_PACE_SAMPLES)
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._returned) + len(self._waiting)

    def __iter__(self) -> Iterator[LiveRequest]:
        yield from self._returned
        yield from self._waiting.values()

    @property
    def tokens(self) -> int:
        """Tokens that newcomers came with: prompts, and outputs drawn elsewhere."""
        return self._tokens

    @property
    def returned(self) -> Sequence[LiveRequest]:
        """Requests that have been admitted before, the next one first."""
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
        while self._turns:
            head = self._turns[0][2].head
            if head is not None:
                return head
            self._leave(heapq.heappop(self._turns)[2])
        return None

    def check_room(self, n_new: int) -> None:
        """Raise QueueFullError where a newcomer with `n_new` tokens would be past a limit.

        In an empty queue one request may wait, however long it is.
        """
        n_requests, n_tokens = len(self._waiting) + 1, self._tokens + n_new
        if n_requests > self._max_requests:
            raise self._full("max_queue_requests", self._max_requests, n_requests)
        if n_requests > 1 and n_tokens > self._max_tokens:
            raise self._full("max_queue_tokens", self._max_tokens, n_tokens)

    def append(self, live: LiveRequest) -> None:
        """Queue a newcomer."""
        name, live.num_queued_tokens = live.request.namespace, live.num_tokens
        namespace = self._namespaces.get(name)
        if namespace is None:
            start = max(self._now_served, self._charged.pop(name, 0.0))
            namespace = self._namespaces[name] = _Namespace(name, start, self._waiting)
            self._take_turn(namespace)
        namespace.append(live)
        self._waiting[live.request.request_id] = live
        self._tokens += live.num_queued_tokens

    def come_back(self, live: LiveRequest) -> None:
        """Queue a request that lost its sequence, before all newcomers."""
        insort(self._returned, live, key=attrgetter("seniority", "number"))

    def discard(self, live: LiveRequest) -> None:
        """Take a request out of wherever in the queue it is; do nothing if it is not there."""
        request_id = live.request.request_id
        if live in self._returned:
            self._returned.remove(live)
        elif self._waiting.get(request_id) is live:
            self._tokens -= live.num_queued_tokens
            self._namespaces[live.request.namespace].n_waiting -= 1
            del self._waiting[request_id]

    def admit(self, live: LiveRequest, now: float) -> None:
        """Take out a request to be served: the head, or one that runs out of turn."""
        if live is not self.head:
            self.discard(live)
        elif self._returned:
            del self._returned[0]
        else:
            charge = live.promised_tokens(self._output_reserve)
            self._admitted_at.append(now)
            start, _, namespace = heapq.heappop(self._turns)
            namespace.pop()
            del self._waiting[live.request.request_id]
            self._tokens -= live.num_queued_tokens
            self._now_served = max(self._now_served, start)
            namespace.start += charge
            if namespace.n_waiting:
                self._take_turn(namespace)
            else:
                self._leave(namespace)

    def _take_turn(self, namespace: _Namespace) -> None:
        self._n_turns += 1
        heapq.heappush(self._turns, (namespace.start, self._n_turns, namespace))

    def _leave(self, namespace: _Namespace) -> None:
        """Drop a namespace without requests. What it has been charged is kept while it counts."""
        del self._namespaces[namespace.name]
        if not self._namespaces or len(self._charged) >= self._max_requests:
            self._charged.clear()  # no other was delayed by it; or too many to remember
        elif namespace.start > self._now_served:
            self._charged[namespace.name] = namespace.start

    def _full(self, field: str, limit: int, wanted: int) -> QueueFullError:
        retry_after = self._retry_after()
        return QueueFullError(
            f"{field} is {limit} and this request would make it {wanted}; "
            f"try again in about {retry_after:.2f} s, or raise {field}",
            retry_after,
        )

    def _retry_after(self) -> float:
        """Seconds until half of the queue should be gone, at the pace seen so far.

        Half, not one place: all that are refused now come back at that time.
        """
        times = self._admitted_at
        pace = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else _DEFAULT_PACE
        return min(max(pace * (len(self._waiting) + 1) / 2, _MIN_RETRY), _MAX_RETRY)


class _Namespace:
    """The waiting requests of one namespace. start: the tokens it has been charged with."""

    def __init__(self, name: str, start: float, waiting: Mapping[int, LiveRequest]) -> None:
        self.name = name
        self.start = start
        self._waiting = waiting
        self.n_waiting = 0
        self._heap: list[tuple[float, int, LiveRequest]] = []  # may hold some that left

    @property
    def head(self) -> LiveRequest | None:
        """The next request of the namespace; None when none waits."""
        if not self.n_waiting:
            return None
        while self._heap[0][2].request.request_id not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][2]

    def append(self, live: LiveRequest) -> None:
        """Add a request."""
        self.n_waiting += 1
        if len(self._heap) > 2 * self.n_waiting + 64:  # most of it have left
            waiting = self._waiting
            self._heap = [entry for entry in self._heap if entry[2].request.request_id in waiting]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (live.seniority, live.number, live))

    def pop(self) -> None:
        """Remove the head, which has been admitted."""
        self.n_waiting -= 1
        heapq.heappop(self._heap)
