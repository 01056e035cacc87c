from __future__ import annotations

import pytest
from telemetry_events import request, step

from pybatcher.calls.rolling_window import (
    MOST_GAPS,
    MOST_REQUESTS,
    SPAN,
    RollingWindow,
    Second,
    percentile,
)


def after(*events: object) -> RollingWindow:
    minute = RollingWindow()
    for event in events:
        minute(event)
    return minute


def test_steps_are_added_up_by_second_and_seconds_without_are_empty() -> None:
    minute = after(
        step(100.0, decode_rows=2, queued=3),
        step(100.9, decode_rows=5, prefill_rows=7, queued=1),
        step(102.0, draft_rows=4),
    )
    first, second, third, fourth = minute.seconds(103.5, 4)
    assert first == Second(
        100,
        steps=2,
        decode_rows=7,
        prefill_rows=8,
        draft_rows=2,
        seconds=0.004,
        engine_seconds=0.002,
        most_queued=3,
    )
    assert (second, fourth) == (Second(101), Second(103))
    assert third.draft_rows == 4
    assert len(minute.seconds(103.5)) == SPAN


def test_events_older_than_a_minute_do_not_count() -> None:
    minute = after(step(100.0), request(100.0, ttft=1.0), request(130.0, ttft=2.0))
    assert sum(second.steps for second in minute.seconds(100.0 + SPAN - 0.1)) == 1
    assert sum(second.steps for second in minute.seconds(100.0 + SPAN)) == 0
    assert minute.ttft(160.0) == [2.0, 1.0]
    assert minute.ttft(160.1) == [2.0]
    assert len(minute.recent(9)) == 2, "whenever that was"


def test_times_of_requests_the_latest_first() -> None:
    minute = after(
        request(100.0, 1, itl=(0.1, 0.2), queued=1.0, total=5.0),
        request(101.0, 2, ttft=None, itl=(), queued=2.0, total=6.0),
        request(102.0, 3, ttft=0.5, itl=(0.3,), queued=3.0, total=7.0),
    )
    assert minute.ttft(102.0) == [0.5, 0.010]
    assert minute.itl(102.0) == [0.3, 0.1, 0.2]
    assert minute.queued(102.0) == [3.0, 2.0, 1.0]
    assert minute.total(102.0) == [7.0, 6.0, 5.0]
    assert [event.request_id for event in minute.recent(2)] == [3, 2]


def test_memory_is_bounded() -> None:
    many = (request(100.0, i, itl=(0.1,) * 50) for i in range(2 * MOST_REQUESTS))
    minute = after(*many, *(step(float(i)) for i in range(200)))
    assert len(minute.total(100.0)) == MOST_REQUESTS
    assert len(minute.itl(100.0)) == MOST_GAPS
    assert len(minute._seconds) == SPAN


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (25, 1.0), (50, 2.0), (51, 3.0), (95, 4.0), (100, 4.0)]
)
def test_percentile_is_a_value_that_was_seen(percent: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == expected


def test_percentile_of_nothing() -> None:
    assert percentile([], 50) == 0.0
