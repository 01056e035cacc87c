"""Errors over the wire: their codes, and what a client raises."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wire_values import ANYTHING, over_the_wire

from pybatcher import errors
from pybatcher.errors import (
    ConfigError,
    EngineError,
    EngineFailedError,
    InvalidRequestError,
    ProtocolError,
    PybatcherError,
    QueueFullError,
    RequestTooLongError,
)
from pybatcher.sidecar.protocol.wire import error_from_wire, error_to_wire, plain_error
from pybatcher.sidecar.protocol.wire_errors import LONGEST_MESSAGE

CODES = {
    "BatcherClosedError": ("shutting_down", True),
    "ConfigError": ("invalid_request", False),
    "ConnectionLostError": ("engine_failed", True),
    "DeadlineExceededError": ("deadline_exceeded", False),
    "EngineError": ("engine_failed", False),
    "EngineFailedError": ("engine_failed", False),
    "InvalidRequestError": ("invalid_request", False),
    "KvCacheFullError": ("engine_failed", True),
    "ModelFormatError": ("invalid_request", False),
    "NoFreeSequenceError": ("engine_failed", True),
    "ProtocolError": ("engine_failed", False),
    "PybatcherError": ("engine_failed", False),
    "QueueFullError": ("queue_full", True),
    "RequestTooLongError": ("too_long", False),
}


def make(name: str, message: str) -> PybatcherError:
    kind = getattr(errors, name)
    return kind(message, 1.5) if kind is QueueFullError else kind(message)


def test_every_error_there_is_has_a_code() -> None:
    assert sorted(CODES) == errors.__all__


@pytest.mark.parametrize("name", sorted(CODES))
def test_an_error_comes_back_as_what_it_was(name: str) -> None:
    sent = error_to_wire(make(name, "why — and the way out"))
    code, retryable = CODES[name]
    assert (sent["code"], sent["retryable"], sent["type"]) == (code, retryable, name)
    got = error_from_wire(over_the_wire(sent))
    assert type(got).__name__ == name
    assert str(got) == "why — and the way out"
    assert getattr(got, "retry_after", 1.5) == 1.5
    assert ("retry_after_ms" in sent) == (name == "QueueFullError")


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.0001, 2.0, math.inf, math.nan])
def test_the_time_to_come_back_is_rounded_up(seconds: float) -> None:
    sent = error_to_wire(QueueFullError("full", seconds))["retry_after_ms"]
    assert type(sent) is int
    assert sent >= 0
    if 0 < seconds < 1e9:
        assert seconds * 1000 <= sent < seconds * 1000 + 1


@pytest.mark.parametrize("error", [ValueError("no"), KeyError(5), MemoryError(), RuntimeError("é")])
def test_what_is_no_error_of_ours_is_the_engines(error: BaseException) -> None:
    sent = error_to_wire(error)
    name = type(error).__name__
    assert (sent["code"], sent["retryable"], sent["type"]) == ("engine_failed", False, name)
    assert sent["message"].startswith(f"{name}: ")
    assert type(error_from_wire(sent)) is EngineFailedError


def test_an_error_that_cannot_be_shown_is_sent_all_the_same() -> None:
    class UglyError(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert "cannot be shown" in error_to_wire(UglyError())["message"]


def test_messages_are_short_and_valid() -> None:
    sent = error_to_wire(InvalidRequestError("\udcff\ud800" + "é" * 5000))["message"]
    assert len(sent) == LONGEST_MESSAGE == 2000
    assert sent.startswith("??é")
    assert sent.endswith("é…")
    assert len(plain_error("cancelled", "x" * 5000)["message"]) == 2000


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("invalid_request", InvalidRequestError),
        ("too_long", RequestTooLongError),
        ("queue_full", QueueFullError),
        ("cancelled", PybatcherError),
        ("unknown_method", InvalidRequestError),
        ("duplicate_id", InvalidRequestError),
        ("bored", EngineError),
    ],
)
def test_without_a_type_the_code_decides(code: str, kind: type[PybatcherError]) -> None:
    assert type(error_from_wire({"code": code, "message": "no"})) is kind
    got = error_from_wire({b"code": b"x", "code": code.encode(), "message": b"no"})
    assert type(got) is kind
    assert "no" in str(got)


def test_the_field_of_an_error_crosses_and_may_be_missing() -> None:
    sent = error_to_wire(InvalidRequestError("stop[2] is 5", field="stop[2]"))
    assert sent["field"] == "stop[2]"
    assert error_from_wire(over_the_wire(sent)).field == "stop[2]"
    del sent["field"]  # as a peer of an older version sends it
    assert error_from_wire(over_the_wire(sent)).field is None
    assert "field" not in error_to_wire(InvalidRequestError("stop is 5"))
    long = error_to_wire(InvalidRequestError("no", field="\ud800" * 5000))["field"]
    assert len(long) == LONGEST_MESSAGE
    assert error_from_wire({**sent, "field": 5}).field is None


def test_a_type_that_is_no_error_of_ours_does_not_count() -> None:
    for name in ("annotations", "Exception", "__doc__", "ValueError"):
        got = error_from_wire({"code": "too_long", "message": "no", "type": name})
        assert type(got) is RequestTooLongError
    assert type(error_from_wire({"code": "x", "message": "", "type": "ConfigError"})) is ConfigError


@given(
    ANYTHING
    | st.dictionaries(
        st.sampled_from(["code", "message", "type", "retry_after_ms"]),
        ANYTHING | st.sampled_from(["queue_full", "QueueFullError", "cancelled"]),
    )
)
@example({"code": "queue_full", "message": ""})
def test_whatever_comes_as_an_error_makes_one(come: object) -> None:
    error = error_from_wire(come)
    assert isinstance(error, PybatcherError)
    assert error_to_wire(error)["message"]


@pytest.mark.parametrize("come", [None, "no", 5, [], {}, {"code": "x"}, {"message": "x"}])
def test_what_is_no_error_breaks_the_protocol(come: object) -> None:
    assert type(error_from_wire(come)) is ProtocolError
