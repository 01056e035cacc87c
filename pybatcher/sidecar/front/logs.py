"""Logging of the command `serve`: lines of text, or of JSON, on stderr.

A library sets up no logging; a server that is the whole process does. A line may contain text that
clients have sent, so line breaks and control characters are escaped.
"""

from __future__ import annotations

import json
import logging
import reprlib
import sys
import traceback
import warnings
from datetime import UTC, datetime
from typing import TextIO

from typing_extensions import override

__all__ = ["JsonFormatter", "TextFormatter", "set_up_logs"]

_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


def set_up_logs(log_format: str, log_level: str, stream: TextIO | None = None) -> None:
    """Log all of this process in one format, including warnings of Python and of other packages.

    Only warnings of packages other than `pybatcher` are logged, without their information messages.

    log_format, log_level: as in ServeConfig. stream: stderr if None.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    own = logging.getLogger("pybatcher")
    own.handlers.clear()
    own.setLevel(log_level.upper())
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(max(own.level, logging.WARNING))
    warnings.showwarning = _log_warning


def _log_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    logging.getLogger("py.warnings").warning("%s", message, extra={"category": category.__name__})


class JsonFormatter(logging.Formatter):
    """One object a line, ASCII: time, level, event, `exception` if any, the fields of `extra`."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if exception := _exception(record):
            fields["exception"] = exception
        # first in the line, and not to be overridden
        entry = {**fields, **_extra(record), **fields}
        try:
            return json.dumps(entry, default=repr, allow_nan=False)
        # keys that are no texts, NaN, or a reference cycle
        except (TypeError, ValueError, RecursionError):
            return json.dumps({name: _plain(value) for name, value in entry.items()})


class TextFormatter(logging.Formatter):
    """Time, level, event, then the fields of `extra` as name=value; a traceback below it."""

    @override
    def format(self, record: logging.LogRecord) -> str:
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
