"""Log lines: of JSON that any reader takes, or of text, and never one that a client made up."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from pybatcher.access_log import LOGGER as ACCESS_LOGGER
from pybatcher.access_log import AccessLine
from pybatcher.calls.telemetry import CallCounts
from pybatcher.sidecar.front.logs import (
    JsonFormatter,
    LaterHandler,
    TextFormatter,
    set_up_logs,
)

FORGED = 'x\n{"level": "error"}\r\x1b[2J\u2028\x85\udc80 é "quoted"'


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    loggers = [logging.getLogger("pybatcher"), logging.root, ACCESS_LOGGER]
    before = [(list(logger.handlers), logger.level) for logger in loggers]
    with warnings.catch_warnings():  # keeps `showwarning`, too
        yield
    for handler in ACCESS_LOGGER.handlers:
        handler.close()
    ACCESS_LOGGER.propagate = True
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)


def record(event: str = "event", **extra: object) -> logging.LogRecord:
    logger = logging.getLogger("pybatcher.sidecar")
    made = logger.makeRecord(
        logger.name, logging.WARNING, "file.py", 7, event, (), None, extra=extra
    )
    made.created = 1_000_000_000.1234
    return made


def failed() -> logging.LogRecord:
    made = record()
    try:
        raise ValueError("first\nsecond\x1b")
    except ValueError:
        made.exc_info = sys.exc_info()
    return made


def parsed(made: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(made)
    assert line.isascii()
    assert line.isprintable()
    entry: dict[str, Any] = json.loads(line, parse_constant=pytest.fail)
    return entry


def test_a_line_of_json() -> None:
    entry = parsed(record("worker started", pid=7, restarts=None, ratio=0.5, ids=[1, 2]))
    assert list(entry.items()) == [
        ("time", "2001-09-09T01:46:40.123Z"),
        ("level", "warning"),
        ("event", "worker started"),
        ("pid", 7),
        ("restarts", None),
        ("ratio", 0.5),
        ("ids", [1, 2]),
    ]
    assert datetime.fromisoformat(entry["time"]).timestamp() == pytest.approx(1e9 + 0.123)


def test_a_line_of_text() -> None:
    line = TextFormatter().format(record("worker started", pid=7, why="killed by SIGSEGV"))
    assert line == "2001-09-09T01:46:40.123Z warning worker started pid=7 why=killed by SIGSEGV"


def test_arguments_go_into_the_event() -> None:
    made = record("%s of %d")
    made.args = ("one", 2)
    assert parsed(made)["event"] == "one of 2"
    assert TextFormatter().format(made).endswith("one of 2")


def test_nobody_can_make_up_a_line() -> None:
    entry = parsed(record(FORGED, said=FORGED))
    assert (entry["event"], entry["said"]) == (FORGED, FORGED)
    line = TextFormatter().format(record(FORGED, said=FORGED))
    assert line.isprintable()
    assert r'x\n{"level": "error"}\r\x1b[2J\u2028\x85\udc80 é "quoted"' in line
    line.encode()


def test_an_exception() -> None:
    exception = parsed(failed())["exception"]
    assert exception.startswith("Traceback (most recent call last):\n")
    assert exception.endswith("ValueError: first\nsecond\x1b")
    first, *others = TextFormatter().format(failed()).split("\n")
    assert first.endswith("warning event")
    assert others[0] == "    Traceback (most recent call last):"
    assert others[-2:] == ["    ValueError: first", r"    second\x1b"]
    assert all(line.startswith("    ") for line in others)


def test_no_exception_is_none() -> None:
    made = record()
    made.exc_info = (None, None, None)
    assert "exception" not in parsed(made)
    assert "\n" not in TextFormatter().format(made)


def test_an_extra_field_cannot_pass_for_one_of_ours() -> None:
    made = failed()
    vars(made).update(dict.fromkeys(("time", "level", "event", "exception"), "another"))
    entry = parsed(made)
    assert (entry["time"][:4], entry["level"], entry["event"]) == ("2001", "warning", "event")
    assert entry["exception"].startswith("Traceback")


def test_what_json_does_not_have_is_still_logged() -> None:
    circle: list[object] = []
    circle.append(circle)
    deep: list[object] = []
    # How deep JSON is encoded is no longer a matter of that limit since 3.12.
    for _ in range(sys.getrecursionlimit() if sys.version_info < (3, 12) else 200_000):
        deep = [deep]
    entry = parsed(record(what={1, 2}, ids=[1]))
    assert (entry["what"], entry["ids"]) == ("{1, 2}", [1])
    assert parsed(record(what=b"\xff"))["what"] == r"b'\xff'"
    entry = parsed(record(what=float("nan"), other=2))
    assert (entry["what"], entry["other"], entry["event"]) == ("nan", 2, "event")
    assert parsed(record(what={"a": float("inf")}))["what"] == "{'a': inf}"
    assert parsed(record(what={(1, 2): 3}))["what"] == "{(1, 2): 3}"
    assert "..." in parsed(record(what=circle))["what"]
    assert "..." in parsed(record(what=deep))["what"]


def test_all_that_is_said_is_one_object_a_line_and_is_said_once() -> None:
    stream, before = io.StringIO(), io.StringIO()
    set_up_logs("json", "info", before)
    set_up_logs("json", "info", stream)
    warnings.simplefilter("always")
    logging.getLogger("pybatcher").debug("too little")
    logging.getLogger("pybatcher").info("one", extra={"n": 1})
    logging.getLogger("pybatcher.sidecar").error("two")
    logging.getLogger("another").info("its own life")
    logging.getLogger("another").error("three")
    logging.getLogger("uvicorn.error").warning("four")
    warnings.warn("five\nsix", UserWarning, stacklevel=1)
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(entry["level"], entry["event"]) for entry in entries] == [
        ("info", "one"),
        ("error", "two"),
        ("error", "three"),
        ("warning", "four"),
        ("warning", "five\nsix"),
    ]
    assert entries[0]["n"] == 1
    assert entries[-1]["category"] == "UserWarning"
    assert before.getvalue() == ""


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_levels_and_stderr(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs("text", level)
    for name in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger("pybatcher"), name)(name)
    lines = capsys.readouterr().err.splitlines()
    expected = ["debug", "info", "warning", "error"]
    assert [line.split()[-1] for line in lines] == expected[expected.index(level) :]


def access_line(route: str = "/v1/models") -> AccessLine:
    counts = CallCounts()
    return AccessLine(
        protocol="http", operation="GET", route=route, counts=counts, status=200, outcome="finished"
    )


@pytest.mark.parametrize("access_log", ["text", "json", "off"])
def test_the_access_log_has_its_own_format_and_level(access_log: str) -> None:
    stream = io.StringIO()
    set_up_logs("text", "error", stream, access_log=access_log)
    logging.getLogger("pybatcher").error("of the log")
    for i in range(3):
        access_line(f"/{i}\n").write()
    for handler in ACCESS_LOGGER.handlers:
        handler.flush()
    first, *lines = stream.getvalue().splitlines()
    assert first.endswith("error   of the log")
    if access_log == "off":
        assert lines == []
    elif access_log == "json":
        entries = [json.loads(line) for line in lines]
        assert [entry["route"] for entry in entries] == ["/0%0A", "/1%0A", "/2%0A"]
        assert list(entries[0])[:5] == ["time", "level", "event", "protocol", "operation"]
        assert (entries[0]["event"], entries[0]["status"]) == ("access", 200)
    else:
        assert [line.split()[2:7] for line in lines] == [
            ["http", "GET", f"/{i}%0A", "200", "finished"] for i in range(3)
        ]


class Stuck(io.StringIO):
    """A stream whose reader has stopped: `write` waits until `goes_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reached, self.goes_on = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.is_reached.set()
        assert self.goes_on.wait(60)
        return super().write(text)


def test_nobody_waits_for_a_reader_of_the_access_log(caplog: pytest.LogCaptureFixture) -> None:
    stream = Stuck()
    handler = LaterHandler(stream, most_waiting=4)
    ACCESS_LOGGER.addHandler(handler)
    ACCESS_LOGGER.setLevel(logging.INFO)
    access_line("/first").write()
    assert stream.is_reached.wait(60)
    for i in range(6):
        access_line(f"/{i}").write()  # the test ends only if this does not wait
    stream.goes_on.set()
    handler.close()
    routes = [line.split()[2] for line in stream.getvalue().splitlines()]
    assert routes == ["/first", "/0", "/1", "/2", "/3"]
    assert "2 lines of the access log were dropped" in caplog.text


def test_a_stream_that_is_closed_ends_nothing() -> None:
    stream = io.StringIO()
    handler = LaterHandler(stream)
    stream.close()
    handler.handle(record("one"))
    handler.close()
