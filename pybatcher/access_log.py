"""The access log: one line for each HTTP request and for each call to a sidecar.

The lines go to the logger "pybatcher.access" with the level INFO. A program that embeds the HTTP
application chooses by that logger whether the lines are written, and where. `pybatcher serve` has
the option `access_log`.

    logging.getLogger("pybatcher.access").setLevel(logging.INFO)
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from .calls.telemetry import CallCounts

__all__ = ["LOGGER", "AccessLine"]

LOGGER = logging.getLogger("pybatcher.access")

_LONGEST = 256  # characters of a route
_LONGEST_ID = 128  # characters of a request id
_PLAIN = "!#$&'()*+,-./:;=?@[]_~{}"  # characters besides letters and digits that are not escaped
_ALL_PLAIN = re.compile(f"[A-Za-z0-9{re.escape(_PLAIN)}]*")


@dataclass(slots=True, kw_only=True)
class AccessLine:
    """One line of the access log. It is formatted by the handler that writes it.

    `str(line)` is the line as text without its time, in ASCII and without spaces inside of a value:
    names and paths of clients are percent-encoded and cut. `fields()` returns the values for JSON.

    protocol: "http" or "socket".
    operation: the HTTP method, or "call".
    route: the path of an HTTP request without its query, or the method of a call.
    counts: the tokens and times of the request.
    status: the HTTP status; of a call "ok", or the code of its error. None: there was none.
    outcome: "finished": the whole response was sent. "error": the response is an error, or the
        stream ended with one. "cancelled": the client cancelled the call, or the server stopped.
        "disconnected": the client left before the end.
    key: a short hash of the API key. None: the request had none.
    uid: the user id of the process that made a call. None: unknown, or an HTTP request.
    request_id: the id of the request, chosen by the client or by the server.
    """

    protocol: str
    operation: str
    route: str
    counts: CallCounts
    status: int | str | None
    outcome: str
    key: str | None = None
    uid: int | None = None
    request_id: str | int | None = None
    total: float = 0.0

    def write(self) -> None:
        """Send the line to the logger, with the time since the beginning of the request."""
        self.total = time.monotonic() - self.counts.began
        # A record made here lacks the name of the calling function, whose search takes most time.
        LOGGER.handle(logging.LogRecord(LOGGER.name, logging.INFO, __file__, 0, self, None, None))

    def fields(self) -> dict[str, Any]:
        """Return the values by their names. Times are in seconds, rounded to 0.1 ms."""
        counts = self.counts
        return {
            "protocol": self.protocol,
            "operation": self.operation,
            "route": _plain(self.route, _LONGEST),
            "status": self.status,
            "outcome": self.outcome,
            "prompt_tokens": counts.prompt_tokens,
            "completion_tokens": counts.completion_tokens,
            "ttft": None if counts.ttft is None else round(counts.ttft, 4),
            "total": round(self.total, 4),
            "key": self.key,
            "uid": self.uid,
            "request_id": _plain(self.request_id, _LONGEST_ID),
        }

    def __str__(self) -> str:
        counts = self.counts
        ttft = "-" if counts.ttft is None else f"{counts.ttft:.4f}"
        return (
            f"{self.protocol} {self.operation} {_plain(self.route, _LONGEST)} "
            f"{_shown(self.status)} {self.outcome} prompt_tokens={_shown(counts.prompt_tokens)} "
            f"completion_tokens={_shown(counts.completion_tokens)} ttft={ttft} "
            f"total={self.total:.4f} key={_shown(self.key)} uid={_shown(self.uid)} "
            f"request_id={_shown(_plain(self.request_id, _LONGEST_ID))}"
        )


def _shown(value: object) -> object:
    return "-" if value is None else value


def _plain(value: Any, most: int) -> Any:
    """Return a text of a client in ASCII without spaces and control characters, and not longer."""
    if not isinstance(value, str) or (len(value) <= most and _ALL_PLAIN.fullmatch(value)):
        return value
    text = value if len(value) <= most else value[:most] + "..."
    return quote(text, safe=_PLAIN, errors="replace")
