"""Many replicas in virtual time: what is routed where, and that all of it ends."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from bench.serving.traces import Lengths, Load, draw
from bench.simulation.coarse import CoarseReplica
from bench.simulation.compare_fleets import KINDS, run_fleet
from bench.simulation.costs import StepCosts
from bench.simulation.fleet import Fleet, ScheduledReplica
from bench.simulation.routing import POLICIES, Routing

COSTS = StepCosts(0.005, 4e-4, 3e-4, 2e-8, 1e-8)
LOAD = Load(
    own_tokens=Lengths(20, 0.5, 64),
    new_tokens=Lengths(6, 0.5, 16),
    groups=8,
    shared_tokens=128,
    in_group=0.9,
)
OPTIONS = {"n_ctx": 1024, "n_parallel": 4}


def fleet(policy: str, kind: str, n_replicas: int = 3) -> dict[str, Any]:
    trace = draw(LOAD, 200, 20.0, 1)
    n_blocks = OPTIONS["n_ctx"] // 32
    make: Any = partial(ScheduledReplica, trace, OPTIONS, COSTS, 1)
    if kind == "coarse":
        make = partial(CoarseReplica, trace, COSTS, n_blocks, OPTIONS["n_parallel"])
    made = Fleet(trace, make, n_replicas, Routing(policy, n_replicas, n_blocks), seed=1)
    made.run()
    assert made._routing.in_flight == [0] * n_replicas
    return made.figures()


@pytest.mark.parametrize("kind", KINDS)
def test_prefixes_are_found_more_often_where_they_were_before(kind: str) -> None:
    shares = {policy: fleet(policy, kind)["cached_share"] for policy in POLICIES}
    assert shares["prefix"] > 1.1 * max(shares[name] for name in POLICIES[:3])


def test_both_kinds_of_replica_find_about_as_much_cached() -> None:
    for policy in ("round robin", "prefix"):
        shares = [fleet(policy, kind)["cached_share"] for kind in KINDS]
        assert shares[0] == pytest.approx(shares[1], abs=0.08)


def test_all_requests_end_and_the_same_way_each_time() -> None:
    figures = fleet("prefix 2", "scheduler")
    assert figures["requests"] == 200
    assert fleet("prefix 2", "scheduler") == figures


def test_policies_send_requests_where_they_say() -> None:
    turns = Routing("round robin", 3, 8)
    assert [turns.choose([]) for _ in range(4)] == [1, 2, 0, 1]
    requests, tokens = Routing("least requests", 2, 8), Routing("least tokens", 2, 8)
    for routing in (requests, tokens):
        routing.began(0, [], 1000)
        routing.began(1, [], 10)
        routing.began(1, [], 10)
    assert (requests.choose([]), tokens.choose([])) == (0, 1)
    requests.ended(1, 10)
    requests.ended(1, 10)
    assert requests.choose([]) == 1
    prefix = Routing("prefix 1", 2, 8)
    prefix.began(1, [7, 8], 10)
    assert prefix.choose([7, 8, 9]) == 1
    prefix.began(1, [5], 10)
    assert prefix.choose([7, 8, 9]) == 0  # too far ahead


def test_a_policy_that_there_is_not_is_refused() -> None:
    for name in ("prefix many", "round robin 4", "fastest"):
        with pytest.raises(ValueError, match=r"policy|could not convert"):
            Routing(name, 2, 8)


def test_a_run_has_its_kind_and_its_policy() -> None:
    row = run_fleet(
        "coarse", "prefix", load="fleet", n_requests=50, n_replicas=2, rate=5.0, seed=0, costs=COSTS
    )
    assert (row["kind"], row["policy"], row["requests"]) == ("coarse", "prefix", 50)
