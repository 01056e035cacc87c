"""Statistics, health and events over the wire."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_values import ANYTHING, COUNTS, FLOATS, TEXTS, over_the_wire

from pybatcher.calls.statistics import BatcherStatistics, Health
from pybatcher.calls.telemetry import RequestEvent, StepEvent, TelemetryEvent
from pybatcher.errors import ProtocolError
from pybatcher.sidecar.protocol import wire
from pybatcher.sidecar.protocol.sidecar_statistics import SidecarStatistics

STATISTICS = st.builds(
    SidecarStatistics,
    **{field.name: COUNTS for field in fields(SidecarStatistics) if field.type == "int"},
    worker_pids=st.lists(COUNTS, max_size=3).map(tuple),
)
STATES = get_args(get_type_hints(Health)["status"])
OF_TYPES: dict[object, st.SearchStrategy[Any]] = {
    int: COUNTS,
    float: FLOATS,
    str: TEXTS,
    float | None: st.none() | FLOATS,
    tuple[float, ...]: st.lists(FLOATS, max_size=3).map(tuple),
    Mapping[str, str]: st.dictionaries(TEXTS, TEXTS, max_size=2),
}


def events(kind: type[StepEvent] | type[RequestEvent]) -> st.SearchStrategy[TelemetryEvent]:
    hints = get_type_hints(kind).items()
    values = {name: OF_TYPES[hint] for name, hint in hints}
    if kind is RequestEvent:
        values["priority"] = st.integers(-1000, 1000)
    return st.builds(kind, **values)


@given(STATISTICS)
def test_statistics_equal_those_that_were_sent(statistics: SidecarStatistics) -> None:
    sent = over_the_wire(wire.statistics_to_wire(statistics))
    assert wire.statistics_from_wire({**sent, "something_new": 5}) == statistics


def test_what_a_batcher_alone_does_not_count_is_none() -> None:
    counts = {field.name: i for i, field in enumerate(fields(BatcherStatistics))}
    sent = over_the_wire(wire.statistics_to_wire(BatcherStatistics(**counts)))
    told = wire.statistics_from_wire(sent)
    assert {name: getattr(told, name) for name in counts} == counts
    assert (told.worker_restarts, told.connections, told.worker_pids) == (0, 0, ())


@given(st.builds(Health, st.sampled_from(STATES), TEXTS))
def test_health_equals_the_one_that_was_sent(health: Health) -> None:
    sent = over_the_wire(wire.health_to_wire(health))
    assert sent["ok"] is health.ok
    assert wire.health_from_wire(sent) == health


@given(events(StepEvent) | events(RequestEvent))
def test_an_event_equals_the_one_that_was_sent(event: TelemetryEvent) -> None:
    got = wire.event_from_wire(over_the_wire(wire.event_to_wire(event)))
    assert repr(got) == repr(event)


def test_an_event_of_an_older_sidecar_is_read() -> None:
    new = ("kind", "trace_headers", "max_tokens", "temperature", "top_p")
    event = RequestEvent(
        when=1.0, request_id=1, namespace="", priority=0, finish_reason="stop", prompt_tokens=1,
        cached_tokens=0, generated_tokens=1, queued=0.0, ttft=0.5, itl=(), total=1.0,
        preemptions=0, recomputed_tokens=0,
    )  # fmt: skip
    kind, sent = over_the_wire(wire.event_to_wire(event))
    older = {name: value for name, value in sent.items() if name not in new}
    assert len(older) == len(sent) - len(new)
    assert wire.event_from_wire([kind, older]) == event


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([], r"must be \[kind, fields\]"),
        (["stop", {}], "the event's kind is 'stop'; it must be one of step, request"),
        (["step", {}], "event.when is None"),
    ],
)
def test_what_is_wrong_with_an_event_is_named(params: list[object], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        wire.event_from_wire(params)


@given(
    st.sampled_from([wire.statistics_from_wire, wire.health_from_wire]),
    ANYTHING | st.dictionaries(st.sampled_from(["status", "reason", "queued"]), ANYTHING),
    st.sampled_from(["step", "request"]),
)
def test_whatever_comes_is_read_or_refused_here_too(reader: Any, come: object, kind: str) -> None:
    for read in (reader, lambda come: wire.event_from_wire([kind, come])):
        with suppress(ProtocolError):
            read(come)
