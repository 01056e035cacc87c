"""Lines of the access log: all values, and nothing that a client could make up."""

from __future__ import annotations

from typing import Any

import pytest

from pybatcher.access_log import LOGGER, AccessLine
from pybatcher.calls.telemetry import CallCounts

HOSTILE = 'a b\nstatus=200\r\x1b[2J\u2028 finished key="x" é\udc80\x00'


def line(**values: Any) -> AccessLine:
    counts = CallCounts()
    counts.add_prompt(12)
    counts.add_output(5, 0.04219)
    told: dict[str, Any] = {"protocol": "http", "operation": "POST", "route": "/v1/completions"}
    told |= {"counts": counts, "status": 200, "outcome": "finished", "key": "ab12cd34"}
    made = AccessLine(**{**told, "request_id": "mine-1", **values})
    made.total = 0.512345
    return made


def test_a_line_as_text_and_as_fields() -> None:
    assert str(line()) == (
        "http POST /v1/completions 200 finished prompt_tokens=12 completion_tokens=5 ttft=0.0422 "
        "total=0.5123 key=ab12cd34 uid=- request_id=mine-1"
    )
    assert line(key=None, uid=1000, request_id=7).fields() == {
        "protocol": "http",
        "operation": "POST",
        "route": "/v1/completions",
        "status": 200,
        "outcome": "finished",
        "prompt_tokens": 12,
        "completion_tokens": 5,
        "ttft": 0.0422,
        "total": 0.5123,
        "key": None,
        "uid": 1000,
        "request_id": 7,
    }
    empty = line(counts=CallCounts(), status=None, key=None, request_id=None)
    assert str(empty) == (
        "http POST /v1/completions - finished prompt_tokens=- completion_tokens=- ttft=- "
        "total=0.5123 key=- uid=- request_id=-"
    )


@pytest.mark.parametrize("field", ["route", "request_id"])
def test_names_of_clients_make_up_no_line_and_no_value(field: str) -> None:
    made = line(**{field: HOSTILE})
    text = str(made)
    assert text.isascii()
    assert text.isprintable()
    assert len(text.split(" ")) == len(str(line()).split(" "))
    assert "a%20b%0Astatus=200%0D%1B[2J" in text
    assert len(str(line(**{field: "x" * 100_000}))) < 500
    assert made.fields()[field].isprintable()


def test_a_line_is_a_record_of_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger=LOGGER.name):
        made = line()
        made.write()
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("pybatcher.access", "INFO")
    assert record.getMessage() == str(made)
    assert made.total < 60
