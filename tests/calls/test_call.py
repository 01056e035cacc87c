"""`Call`, and the one place where an unforeseen exception becomes an error of its call."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pybatcher import EngineError, InvalidRequestError
from pybatcher.calls.call import Call, CallOptions, only_typed_errors


def test_what_a_call_is_where_nothing_is_said() -> None:
    call = Call(content="Once")
    assert (call.chat, call.params, dict(call.sampling), call.output) == (None, None, {}, ())
    assert (call.priority, call.timeout, call.namespace, call.tenant) == (0, None, None, None)
    assert isinstance(call, CallOptions)


def test_calls_share_no_sampling() -> None:
    first, second = Call(content="a"), Call(content="a")
    assert first.sampling is not second.sampling


def test_a_typed_error_stays_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    error = InvalidRequestError("prompt is 3")
    with pytest.raises(InvalidRequestError) as raised, only_typed_errors("this call"):
        raise error
    assert raised.value is error
    assert not caplog.records


def test_any_other_becomes_one_with_its_cause_and_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = ZeroDivisionError("by nought")
    with (
        caplog.at_level(logging.ERROR, "pybatcher"),
        pytest.raises(
            EngineError, match="this call could not be served: ZeroDivisionError: "
        ) as raised,
        only_typed_errors("this call"),
    ):
        raise error
    assert raised.value.__cause__ is error
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


@pytest.mark.parametrize("kind", [asyncio.CancelledError, KeyboardInterrupt, GeneratorExit])
def test_what_ends_more_than_a_call_passes(kind: type[BaseException]) -> None:
    with pytest.raises(kind), only_typed_errors("this call"):
        raise kind


def test_an_error_that_cannot_be_printed_has_a_message_all_the_same() -> None:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

        __repr__ = __str__

    with (
        pytest.raises(EngineError, match=r"this call could not be served: .*UnprintableError"),
        only_typed_errors("this call"),
    ):
        raise UnprintableError
