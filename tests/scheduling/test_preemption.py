"""Victim policies: the least senior, the highest value of priority, or who frees most blocks."""

from __future__ import annotations

import pytest
from live_requests import live_request

from pybatcher.scheduling.preemption import VICTIM_POLICIES
from pybatcher.testing import FakeEngine


@pytest.mark.parametrize(("policy", "victim"), [("youngest", 2), ("priority", 0), ("cheapest", 1)])
def test_each_policy_picks_its_victim(policy: str, victim: int) -> None:
    engine = FakeEngine(block_size=16)
    candidates = []
    for request_id, n_tokens in enumerate([3, 40, 5]):
        live = live_request(request_id, seniority=float(request_id), priority=-request_id)
        live.seq_id = engine.seq_new()
        engine.prefill_chunk(live.seq_id, (request_id,) * n_tokens)
        candidates.append(live)
    if policy == "cheapest":
        candidates *= 3  # of so many, a victim should free three blocks
    assert VICTIM_POLICIES[policy](candidates, engine) is candidates[victim]
