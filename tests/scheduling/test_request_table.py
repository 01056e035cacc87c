"""`RequestTable`: a request is in one place, and whatever its state, `end` takes it out."""

from __future__ import annotations

import pytest

from pybatcher.errors import InvalidRequestError
from pybatcher.params.config import SchedulerConfig
from pybatcher.scheduling import Request
from pybatcher.scheduling.request_table import RequestTable
from pybatcher.testing import FakeEngine


def table_of(*requests: Request) -> tuple[RequestTable, FakeEngine]:
    engine = FakeEngine()
    table = RequestTable(SchedulerConfig(), engine)
    for request in requests:
        table.add(request, 0.0)
    return table, engine


@pytest.mark.parametrize("state", ["waiting", "half admitted", "running", "in step", "preempted"])
def test_a_request_ends_in_every_state_and_gives_back_its_kv(state: str) -> None:
    table, engine = table_of(
        Request(request_id=1, prompt=(1, 2)), Request(request_id=2, prompt=(3,))
    )
    live = table.live[1]
    if state != "waiting":
        live.seq_id = engine.seq_new()
    if state in ("running", "in step", "preempted"):
        table.run(live)
    if state == "preempted":
        table.preempt(live)
    table.in_step = state == "in step"
    table.end(live)
    assert engine.used_sequences == (state == "in step")
    table.step_over(0.0)
    assert engine.used_sequences == 0
    assert list(table.live) == [2]
    assert not table.running
    assert [other.request.request_id for other in table.waiting] == [2]
    assert table.waiting.tokens == 1


@pytest.mark.parametrize(
    "odd",
    [{"deadline": float("nan")}, {"deadline": "soon"}, {"priority": 10**400}, {"namespace": []}],
)
def test_a_request_with_an_odd_value_is_refused_and_leaves_no_trace(odd: dict[str, object]) -> None:
    table, _ = table_of(Request(request_id=1, prompt=(1,), deadline=5.0))
    with pytest.raises((InvalidRequestError, ValueError, OverflowError, TypeError)):
        table.add(Request(request_id=2, prompt=(1,), **odd), 0.0)
    with pytest.raises(InvalidRequestError, match="request_id is 1"):
        table.add(Request(request_id=1, prompt=(1,)), 0.0)
    assert (list(table.live), len(table.waiting), table.waiting.tokens) == ([1], 1, 1)
    assert table.next_deadline == 5.0
    assert table.counters.submitted == 1
