"""The trace headers of a call: `traceparent` and `tracestate` of W3C Trace Context.

https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from ..errors.checks import REQUEST

__all__ = ["check_trace_headers", "current_trace_headers", "headers_of_trace"]

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_VALID = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[\x21-\x7e]*)?"
)
_STATE = re.compile(r"[\t\x20-\x7e]{1,4096}")
_MOST_HEADERS = 1024
_LONGEST = 512


def current_trace_headers() -> Mapping[str, str] | None:
    """Return the trace headers of the caller's current span; None without a span or OpenTelemetry.

    In a program that has not imported OpenTelemetry, the cost is one look-up.
    """
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    try:
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return None
        flags = int(context.trace_flags)
        parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"
        state = context.trace_state.to_header()
    except Exception:  # from a custom tracer or a partial import; the call itself is valid
        return None
    return {TRACEPARENT: parent, TRACESTATE: state} if state else {TRACEPARENT: parent}


def headers_of_trace(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the trace headers among the headers of an HTTP request, with names in lower case."""
    return {name: headers[name] for name in (TRACEPARENT, TRACESTATE) if name in headers}


def check_trace_headers(headers: object) -> dict[str, str]:
    """Return the trace headers, with names in lower case.

    Other headers are left out, and so is a malformed trace: by the standard, a malformed header
        begins a new trace. Raises InvalidRequestError for a value that is no map of texts.
    """
    wanted = "a map of texts: traceparent, and perhaps tracestate"
    with REQUEST.reading("trace_headers", headers, wanted):
        given = dict(REQUEST.pairs("trace_headers", headers, _MOST_HEADERS, wanted))
    found: dict[str, str] = {}
    for name, value in given.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise REQUEST.bad("trace_headers", headers, wanted)
        found[name.lower()] = value
    parent, state = found.get(TRACEPARENT, ""), found.get(TRACESTATE, "")
    if len(parent) > _LONGEST or not _VALID.fullmatch(parent):
        return {}
    if not _STATE.fullmatch(state):
        return {TRACEPARENT: parent}
    return {TRACEPARENT: parent, TRACESTATE: state}
