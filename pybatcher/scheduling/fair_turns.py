"""`FairTurns`: gives groups of waiting requests equal shares."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container
from typing import Protocol

from .request import LiveRequest, Request

__all__ = ["BySeniority", "FairTurns"]


class _Group(Protocol):
    """Waiting requests with an order of their own."""

    @property
    def head(self) -> LiveRequest | None:
        """The next request; None when none waits."""

    def append(self, live: LiveRequest) -> None:
        """Add a request."""

    def pop(self, charge: float) -> None:
        """Remove the head, right after a call of `head`. charge: the tokens that it costs."""


class FairTurns:
    """Groups take turns by start-time fair queueing (Goyal, Vin and Cheng 1996).

    Each request is charged with its tokens, and the group with the smallest charge is next. A
    group with a thousand requests therefore does not delay the first request of another group.

    name_of: returns the group of a request.
    new_group: makes an empty group, which may be another `FairTurns`.
    max_debts: number of groups without requests whose charge is remembered.
    """

    def __init__(
        self, name_of: Callable[[Request], str], new_group: Callable[[], _Group], max_debts: int
    ) -> None:
        self._name_of = name_of
        self._new_group = new_group
        self._max_debts = max_debts
        self._shares: dict[str, _Share] = {}  # of groups with waiting requests, or just emptied
        self._turns: list[tuple[float, int, _Share]] = []  # a heap
        self._debts: dict[str, float] = {}  # of groups that have left
        self._now_served = 0.0  # the start tag of the latest turn
        self._n_turns = 0

    def has(self, name: str) -> bool:
        """Return whether a request of that group waits."""
        share = self._shares.get(name)
        return share is not None and share.group.head is not None

    @property
    def head(self) -> LiveRequest | None:
        """The next request; None when none waits."""
        while self._turns:
            head = self._turns[0][2].group.head
            if head is not None:
                return head
            self._leave(heapq.heappop(self._turns)[2])
        return None

    def append(self, live: LiveRequest) -> None:
        """Add a request to its group."""
        name = self._name_of(live.request)
        share = self._shares.get(name)
        if share is None:
            start = max(self._now_served, self._debts.pop(name, 0.0))
            share = self._shares[name] = _Share(name, start, self._new_group())
            self._take_turn(share)
        share.group.append(live)

    def pop(self, charge: float) -> None:
        """Remove the head, right after a call of `head`, and charge its group."""
        start, _, share = heapq.heappop(self._turns)
        share.group.pop(charge)
        self._now_served = max(self._now_served, start)
        share.start += charge
        if share.group.head is not None:
            self._take_turn(share)
        else:
            self._leave(share)

    def _take_turn(self, share: _Share) -> None:
        self._n_turns += 1
        heapq.heappush(self._turns, (share.start, self._n_turns, share))

    def _leave(self, share: _Share) -> None:
        """Drop a group without requests. Its charge is kept as long as it matters."""
        del self._shares[share.name]
        if not self._shares or len(self._debts) >= self._max_debts:
            self._debts.clear()  # no other group was delayed by these, or they are too many
        elif share.start > self._now_served:
            self._debts[share.name] = share.start


class _Share:
    """A group and its account. start: the number of tokens charged to it."""

    __slots__ = ("group", "name", "start")

    def __init__(self, name: str, start: float, group: _Group) -> None:
        self.name = name
        self.start = start
        self.group = group


class BySeniority:
    """Requests of one group by seniority, the earliest first; ties in the order of submission.

    waiting: ids of all waiting requests. An entry whose request has left `waiting` is stale: it is
        removed when it reaches the top, so that no count has to be kept in step.
    """

    def __init__(self, waiting: Container[int]) -> None:
        self._waiting = waiting
        self._heap: list[tuple[float, int, LiveRequest]] = []  # may have stale entries
        self._clean_at = _LEAST_CLEANED

    @property
    def head(self) -> LiveRequest | None:
        """The next request; None when none waits."""
        heap = self._heap
        while heap and not self._counts(heap[0]):
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def append(self, live: LiveRequest) -> None:
        """Add a request."""
        if len(self._heap) >= self._clean_at:
            entries = {entry[1]: entry for entry in self._heap if self._counts(entry)}
            self._heap = list(entries.values())  # a request may have left and come back
            heapq.heapify(self._heap)
            self._clean_at = 2 * len(self._heap) + _LEAST_CLEANED
        heapq.heappush(self._heap, (live.seniority, live.number, live))

    def _counts(self, entry: tuple[float, int, LiveRequest]) -> bool:
        """Return False for a stale entry: its request has left, or has a new seniority."""
        seniority, _, live = entry
        return live.request.request_id in self._waiting and live.seniority == seniority

    def pop(self, charge: float) -> None:
        """Remove the head. The account of the group is kept by `FairTurns`."""
        heapq.heappop(self._heap)


_LEAST_CLEANED = 64
"""Smallest number of entries of a heap at which stale entries are removed."""
