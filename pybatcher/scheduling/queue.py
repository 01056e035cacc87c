"""`WaitingQueue`: requests that hold no sequence, and whose turn it is."""

from __future__ import annotations

import heapq
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence

from ..errors import QueueFullError
from .request import LiveRequest

__all__ = ["WaitingQueue"]

_PACE_SAMPLES = 32
_DEFAULT_PACE = 1.0
_MIN_RETRY, _MAX_RETRY = 0.05, 60.0


class WaitingQueue:
    """Who came back first, then namespaces in turn, then by seniority in each.

    Who has been admitted before (preempted, or a restart's survivor) goes before
    all others. Namespaces take turns by start-time fair queueing (Goyal, Vin and
    Cheng 1996): each request is charged with its tokens, and the namespace that has
    been charged least is next. So one with a thousand requests does not delay
    another's first. In a namespace the earlier seniority goes first.

    Bounded by requests and by the tokens they came with, of newcomers both. No
    operation looks at all who wait. It also measures its pace, the seconds between
    admissions, which is what `QueueFullError.retry_after` is estimated from.
    """

    def __init__(self, max_requests: int, max_tokens: int, output_reserve: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._output_reserve = output_reserve
        self._returned: list[LiveRequest] = []  # by seniority
        self._waiting: OrderedDict[int, LiveRequest] = OrderedDict()  # newcomers by id, in order
        self._namespaces: dict[str, _Namespace] = {}  # of those with anybody waiting
        self._turns: list[tuple[float, int, _Namespace]] = []  # a heap; may name empty ones
        self._charged: dict[str, float] = {}  # of those who have left with a debt
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
        """Those that newcomers came with: prompts, and what of their outputs was there."""
        return self._tokens

    @property
    def returned(self) -> Sequence[LiveRequest]:
        """Those who have been admitted before."""
        return self._returned

    @property
    def waiting_since(self) -> float | None:
        """When the one who waits longest was submitted."""
        if self._returned:
            return min(live.submitted for live in self._returned)
        return next((live.submitted for live in self._waiting.values()), None)

    @property
    def head(self) -> LiveRequest | None:
        """Who is next."""
        if self._returned:
            return self._returned[0]
        while self._turns:
            head = self._turns[0][2].head
            if head is not None:
                return head
            self._leave(heapq.heappop(self._turns)[2])
        return None

    def check_room(self, n_new: int) -> None:
        """Raise QueueFullError where a newcomer with so many tokens would be past a limit.

        Somebody may always wait.
        """
        n_requests, n_tokens = len(self._waiting) + 1, self._tokens + n_new
        if n_requests > self._max_requests:
            raise self._full("max_queue_requests", self._max_requests, n_requests)
        if n_requests > 1 and n_tokens > self._max_tokens:
            raise self._full("max_queue_tokens", self._max_tokens, n_tokens)

    def append(self, live: LiveRequest) -> None:
        """A newcomer."""
        name = live.request.namespace
        namespace = self._namespaces.get(name)
        if namespace is None:
            start = max(self._now_served, self._charged.pop(name, 0.0))
            namespace = self._namespaces[name] = _Namespace(name, start, self._waiting)
            self._take_turn(namespace)
        self._waiting[live.request.request_id] = live
        namespace.append(live)
        self._tokens += live.num_tokens

    def come_back(self, live: LiveRequest) -> None:
        """Somebody who lost its sequence."""
        insort(self._returned, live, key=lambda other: (other.seniority, other.number))

    def remove(self, live: LiveRequest) -> None:
        """Leave the queue, from wherever in it."""
        if self._waiting.pop(live.request.request_id, None) is None:
            self._returned.remove(live)
        else:
            self._tokens -= live.num_tokens
            self._namespaces[live.request.namespace].n_waiting -= 1

    def admit(self, live: LiveRequest, now: float) -> None:
        """Take one out to be served, whose turn it is or who goes before all."""
        if live is not self.head:
            self.remove(live)
        elif self._returned:
            del self._returned[0]
        else:
            self._admitted_at.append(now)
            start, _, namespace = heapq.heappop(self._turns)
            namespace.pop()
            del self._waiting[live.request.request_id]
            self._tokens -= live.num_tokens
            self._now_served = max(self._now_served, start)
            namespace.start += live.promised_tokens(self._output_reserve)
            if namespace.n_waiting:
                self._take_turn(namespace)
            else:
                self._leave(namespace)

    def _take_turn(self, namespace: _Namespace) -> None:
        self._n_turns += 1
        heapq.heappush(self._turns, (namespace.start, self._n_turns, namespace))

    def _leave(self, namespace: _Namespace) -> None:
        """Nobody of it waits. What it has been charged is kept while it counts."""
        del self._namespaces[namespace.name]
        if not self._namespaces or len(self._charged) >= self._max_requests:
            self._charged.clear()  # nobody else waited for it; or too many to remember
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

        Half, not one place: all who are refused now come back at that time.
        """
        times = self._admitted_at
        pace = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else _DEFAULT_PACE
        return min(max(pace * (len(self._waiting) + 1) / 2, _MIN_RETRY), _MAX_RETRY)


class _Namespace:
    """Those of one namespace who wait. start: the tokens it has been charged with."""

    def __init__(self, name: str, start: float, waiting: Mapping[int, LiveRequest]) -> None:
        self.name = name
        self.start = start
        self._waiting = waiting
        self.n_waiting = 0
        self._heap: list[tuple[float, int, LiveRequest]] = []  # may hold some who left

    @property
    def head(self) -> LiveRequest | None:
        """Who is next of them."""
        if not self.n_waiting:
            return None
        while self._has_left(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][2]

    def append(self, live: LiveRequest) -> None:
        """One more."""
        self.n_waiting += 1
        if len(self._heap) > 2 * self.n_waiting + 64:  # most of it are some who left
            self._heap = [entry for entry in self._heap if not self._has_left(entry[2])]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (live.seniority, live.number, live))

    def pop(self) -> None:
        """The one who is next has been admitted."""
        self.n_waiting -= 1
        heapq.heappop(self._heap)

    def _has_left(self, live: LiveRequest) -> bool:
        return live.request.request_id not in self._waiting
