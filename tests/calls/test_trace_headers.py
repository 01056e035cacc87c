"""Traces that calls belong to: what is taken from a caller's span, from headers, and refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from pybatcher import InvalidRequestError
from pybatcher.calls.trace_headers import (
    check_trace_headers,
    current_trace_headers,
    headers_of_trace,
)

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STATE = "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"


def test_the_current_span_is_what_a_call_belongs_to() -> None:
    assert current_trace_headers() is None
    context = SpanContext(
        0x0AF7651916CD43DD8448EB211C80319C,
        0xB7AD6B7169203331,
        is_remote=False,
        trace_flags=TraceFlags(1),
        trace_state=TraceState.from_header([STATE]),
    )
    with trace.use_span(NonRecordingSpan(context)):
        assert current_trace_headers() == {"traceparent": PARENT, "tracestate": STATE}
    with TracerProvider().get_tracer("test").start_as_current_span("mine") as span:
        found = current_trace_headers()
    assert found is not None
    assert f"{span.get_span_context().trace_id:032x}" in found["traceparent"]
    assert "tracestate" not in found


def test_a_tracer_that_raises_harms_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr("opentelemetry.trace.get_current_span", broken)
    assert current_trace_headers() is None


def test_headers_are_read_by_any_spelling_and_others_are_left_out() -> None:
    given = {"TraceParent": PARENT, "tracestate": STATE, "cookie": "x"}
    assert check_trace_headers(given) == {"traceparent": PARENT, "tracestate": STATE}
    assert headers_of_trace({"cookie": "x", "traceparent": PARENT}) == {"traceparent": PARENT}
    assert check_trace_headers({}) == {}


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT + "\n",
        PARENT + "x",
        "ff" + PARENT[2:],
        "00-" + "0" * 32 + PARENT[35:],
        PARENT[:36] + "0" * 16 + "-01",
        PARENT + "-" + "x" * 600,
        "\ud800",
    ],
)
def test_a_malformed_trace_is_none(parent: str) -> None:
    assert check_trace_headers({"traceparent": parent, "tracestate": STATE}) == {}


@pytest.mark.parametrize("state", ["", "a=\u00e9", "a=\ud800", "a=b\r\nx", "a" * 5000])
def test_a_malformed_state_is_left_out(state: str) -> None:
    assert check_trace_headers({"traceparent": PARENT, "tracestate": state}) == {
        "traceparent": PARENT
    }


def test_a_version_to_come_may_be_longer() -> None:
    later = "01" + PARENT[2:] + "-more"
    assert check_trace_headers({"traceparent": later}) == {"traceparent": later}


class _Raises(dict[str, str]):
    def keys(self) -> Any:
        raise RuntimeError("no")

    __iter__ = items = keys


@pytest.mark.parametrize(
    "value", [None, 5, PARENT, [PARENT], {"traceparent": 5}, {5: PARENT}, {"a": None}, True]
)
def test_what_is_no_map_of_texts_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="trace_headers"):
        check_trace_headers(value)


class Unending(Mapping[str, str]):
    """Has endlessly many headers, and says it has one."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, name: str) -> str:
        return PARENT

    def __iter__(self) -> Iterator[str]:
        return iter(lambda: "traceparent", "")


def test_headers_without_an_end_are_read_as_far_as_they_say() -> None:
    assert check_trace_headers(Unending()) == {"traceparent": PARENT}
