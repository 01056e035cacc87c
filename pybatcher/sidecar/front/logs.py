"""Logging of the command `serve`: lines of text, or of JSON, on stderr.

A library sets up no logging; a server that is the whole process does. A line may contain text that
clients have sent, so line breaks and control characters are escaped.
"""

from __future__ import annotations

import json
import logging
import reprlib
import sys
import threading
import traceback
import warnings
from collections import deque
from datetime import UTC, datetime
from typing import TextIO

from typing_extensions import override

from ...access_log import LOGGER as ACCESS_LOGGER
from ...access_log import AccessLine

__all__ = ["JsonFormatter", "LaterHandler", "TextFormatter", "set_up_logs"]

_MOST_WAITING = 50_000  # lines of the access log in memory, about 50 MB
_WRITE_PERIOD = 0.2  # seconds
_FLUSH_TIMEOUT = 1.0  # seconds
_ENCODER = json.JSONEncoder(default=repr, allow_nan=False)
_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


def set_up_logs(
    log_format: str, log_level: str, stream: TextIO | None = None, *, access_log: str = "off"
) -> None:
    """Log all of this process in one format, including warnings of Python and of other packages.

    Only warnings of packages other than `pybatcher` are logged, without their information messages.

    log_format, log_level, access_log: as in ServeConfig. stream: stderr if None.
    """
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    own = logging.getLogger("pybatcher")
    own.handlers.clear()
    own.setLevel(log_level.upper())
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(max(own.level, logging.WARNING))
    warnings.showwarning = _log_warning
    for old in list(ACCESS_LOGGER.handlers):
        ACCESS_LOGGER.removeHandler(old)
        old.close()
    ACCESS_LOGGER.propagate = False
    ACCESS_LOGGER.setLevel(logging.CRITICAL if access_log == "off" else logging.INFO)
    if access_log != "off":
        later = LaterHandler(stream)
        later.setFormatter(JsonFormatter() if access_log == "json" else TextFormatter())
        ACCESS_LOGGER.addHandler(later)


def _log_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    logging.getLogger("py.warnings").warning("%s", message, extra={"category": category.__name__})


class LaterHandler(logging.StreamHandler[TextIO]):
    """Formats and writes records on a thread of its own, several at a time.

    A request does not wait for the line that reports it, not even if nobody reads stderr. If more
    than 50,000 records wait, further ones are dropped, and a later line has their number. `flush`
    and `close` write the records that wait; `logging` calls both when Python exits.
    """

    def __init__(self, stream: TextIO, most_waiting: int = _MOST_WAITING) -> None:
        super().__init__(stream)
        self._most = most_waiting
        self._waiting: deque[logging.LogRecord] = deque()
        self._n_dropped = 0
        self._has_waiting = threading.Event()
        self._is_closed = threading.Event()
        self._writing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="pybatcher-access-log", daemon=True)
        self._thread.start()

    @override
    def handle(self, record: logging.LogRecord) -> bool:
        # It takes no lock that the writing thread may hold.
        if len(self._waiting) >= self._most:
            self._n_dropped += 1
            return False
        self._waiting.append(record)
        if not self._has_waiting.is_set():
            self._has_waiting.set()
        return True

    @override
    def flush(self) -> None:
        if not self._writing.acquire(timeout=_FLUSH_TIMEOUT):
            return  # the thread waits for somebody to read the log
        try:
            lines = []
            for _ in range(len(self._waiting)):
                lines.append(self.format(self._waiting.popleft()) + self.terminator)
            if self._n_dropped:
                n, self._n_dropped = self._n_dropped, 0
                logging.getLogger("pybatcher.sidecar").warning(
                    "%d lines of the access log were dropped", n
                )
            if lines:
                self.stream.write("".join(lines))
                self.stream.flush()
        except (OSError, ValueError):  # nobody reads the log any more, or it is closed
            pass
        finally:
            self._writing.release()

    @override
    def close(self) -> None:
        self._is_closed.set()
        self._has_waiting.set()
        self.flush()
        super().close()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            self._has_waiting.wait()
            self._is_closed.wait(_WRITE_PERIOD)
            self._has_waiting.clear()
            self.flush()


class JsonFormatter(logging.Formatter):
    """One object a line, ASCII: time, level, event, `exception` if any, the fields of `extra`."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
        }
        if isinstance(record.msg, AccessLine):
            fields |= {"event": "access", **record.msg.fields()}
        else:
            fields["event"] = record.getMessage()
        if exception := _exception(record):
            fields["exception"] = exception
        # first in the line, and not to be overridden
        entry = {**fields, **_extra(record), **fields}
        try:
            return _ENCODER.encode(entry)
        # keys that are no texts, NaN, or a reference cycle
        except (TypeError, ValueError, RecursionError):
            return json.dumps({name: _plain(value) for name, value in entry.items()})


class TextFormatter(logging.Formatter):
    """Time, level, event, then the fields of `extra` as name=value; a traceback below it."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.msg, AccessLine):  # it has escaped the texts of clients itself
            return f"{_time(record)} {record.levelname.lower():7} {record.msg}"
        parts = [_time(record), f"{record.levelname.lower():7}", record.getMessage()]
        parts += [f"{name}={value}" for name, value in _extra(record).items()]
        lines = [" ".join(map(_printable, parts))]
        lines += ["    " + _printable(line) for line in _exception(record).splitlines()]
        return "\n".join(lines)


def _time(record: logging.LogRecord) -> str:
    """Return the time of a record in UTC, to the millisecond."""
    when = datetime.fromtimestamp(record.created, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}


def _exception(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    return "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, (str, int)) else reprlib.repr(value)


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
