"""Policies that choose the replica of a request from the knowledge of a router."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pybatcher.ray.held_prefixes import HeldPrefixes
from pybatcher.ray.prefix_index import PrefixIndex
from pybatcher.ray.ranking import ranked

__all__ = ["POLICIES", "Routing"]

POLICIES = ("round robin", "least requests", "least tokens", "prefix")
"""The names of policies; "prefix" can have an imbalance after it: "prefix 4"."""

_REPORT_PERIOD = 1.0


class Routing:
    """One policy and its state.

    "prefix" is the choice of `pybatcher.ray`: the same function over the same index, with reports
    from the replicas once a second.

    capacity: blocks of a replica's KV cache.
    """

    def __init__(self, policy: str, n_replicas: int, capacity: int) -> None:
        self._name, self._imbalance = _parsed(policy)
        self._turn = 0
        self.in_flight = [0] * n_replicas
        self._tokens = [0] * n_replicas
        self._held = [HeldPrefixes(capacity) for _ in range(n_replicas)]
        self._index = PrefixIndex()
        self._next_report = _REPORT_PERIOD
        self._to_report: set[int] = set()

    def at(self, now: float) -> None:
        """Let the replicas report that are due."""
        if self._name != "prefix" or now < self._next_report:
            return
        self._next_report = now + _REPORT_PERIOD
        for place in self._to_report:
            self._index.reported(place, self._held[place].report())
        self._to_report.clear()

    def choose(self, hashes: Sequence[int]) -> int:
        """Return the place of the replica for a prompt with these blocks."""
        n = len(self.in_flight)
        self._turn += 1
        if self._name == "round robin":
            return self._turn % n
        if self._name == "least requests":
            return min(range(n), key=lambda i: (self.in_flight[i], (i - self._turn) % n))
        if self._name == "least tokens":
            return min(range(n), key=lambda i: (self._tokens[i], (i - self._turn) % n))
        matched = [self._index.matched(i, hashes) for i in range(n)]
        return ranked(self.in_flight, matched, imbalance=self._imbalance, turn=self._turn)[0]

    def began(self, place: int, hashes: Iterable[int], tokens: int) -> None:
        """Note a request that was sent to a replica. tokens: its prompt and its output."""
        self.in_flight[place] += 1
        self._tokens[place] += tokens
        if self._name == "prefix":
            self._held[place].use(hashes)
            self._index.routed(place, hashes)
            self._to_report.add(place)

    def ended(self, place: int, tokens: int) -> None:
        """Note the end of a request."""
        self.in_flight[place] -= 1
        self._tokens[place] -= tokens


def _parsed(policy: str) -> tuple[str, float]:
    """Return the name of a policy and its imbalance. Raises ValueError."""
    name, _, number = policy.rpartition(" ")
    if policy in POLICIES:
        name, number = policy, "8"
    if name not in POLICIES or (name != "prefix" and policy != name):
        raise ValueError(f"policy is {policy!r}; there are: {', '.join(POLICIES)}, prefix NUMBER")
    return name, float(number)
