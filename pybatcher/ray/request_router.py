"""`PrefixRouter`: a `RequestRouter` of Ray Serve that prefers replicas which hold the prompt.

Without Ray the class exists and cannot be used.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from .prefix_index import PrefixIndex
from .ranking import IMBALANCE, ranked

try:
    from ray.serve.request_router import RequestRouter
except ImportError:
    RequestRouter = object

__all__ = ["PrefixRouter"]


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray's types are not read
    """Routes by prefixes as long as no replica is much busier than another, and else by load.

    A replica reports the blocks that it holds (`Replica.record_routing_stats`); blocks routed to it
    since then count as held. An output that continues after its replica was lost goes to a replica
    of the same fingerprint, if there is one. The choice uses only this process's own state and
    never waits.
    """

    @override
    def initialize_state(self, **options: Any) -> None:
        self._imbalance = float(options.get("imbalance", IMBALANCE))
        self._index = PrefixIndex()
        self._turn = 0

    @override
    async def choose_replicas(
        self, candidate_replicas: list[Any], pending_request: Any | None = None
    ) -> list[list[Any]]:
        replicas, told = candidate_replicas, {}
        if pending_request is not None:
            told = pending_request.kwargs
            # Without the back-off Ray asks again at once while no replica takes the request: its
            # loop would do nothing else, and not receive news of a replica that has room.
            pending_request.routing_context.should_backoff = True
        if fingerprint := told.get("fingerprint"):
            replicas = _of_fingerprint(replicas, fingerprint)
        self._take_reports(replicas)
        hashes = array("Q", told.get("prefix", b""))
        loads = [self._load(replica) for replica in replicas]
        matched = [self._index.matched(one.replica_id, hashes) for one in replicas]
        self._turn += 1
        order = ranked(loads, matched, imbalance=self._imbalance, turn=self._turn)
        return [[replicas[i]] for i in order]

    @override
    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        prefix = pending_request.kwargs.get("prefix", b"")
        self._index.routed(replica_id, array("Q", prefix))

    @override
    def update_replicas(self, replicas: list[Any]) -> None:
        super().update_replicas(replicas)
        self._index.keep_only([replica.replica_id for replica in replicas])

    @override
    def on_replica_actor_died(self, replica_id: Any) -> None:
        super().on_replica_actor_died(replica_id)
        self._index.keep_only(self.curr_replicas.keys())

    def _take_reports(self, replicas: Sequence[Any]) -> None:
        for replica in replicas:
            held = replica.routing_stats.get("held")
            if held is not None:
                self._index.reported(replica.replica_id, held)

    def _load(self, replica: Any) -> float:
        """Return the requests in flight at a replica: those known here, or its last report."""
        known = self.replica_queue_len_cache.get(replica.replica_id)
        return float(replica.routing_stats.get("ongoing", 0) if known is None else known)


def _of_fingerprint(replicas: list[Any], fingerprint: str) -> list[Any]:
    """Return the replicas with this fingerprint; all of them if none has it, so one refuses."""
    same = [one for one in replicas if one.replica_metadata.get("fingerprint") == fingerprint]
    return same or replicas
