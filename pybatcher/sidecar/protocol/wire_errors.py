"""Errors on the wire: {code, message, retryable, retry_after_ms?, type, field?}.

`_ERRORS` is the table of codes; a new one is a line there. `type` is the name of the class, for
clients that have such classes; others use the code. `field` is `PybatcherError.field`; peers of
older versions neither send nor read it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ... import errors
from ...errors import (
    BatcherClosedError,
    ConfigError,
    ConnectionLostError,
    DeadlineExceededError,
    EngineError,
    EngineFailedError,
    InvalidRequestError,
    KvCacheFullError,
    ModelFormatError,
    NoFreeSequenceError,
    ProtocolError,
    PybatcherError,
    QueueFullError,
    RequestTooLongError,
)
from .wire_fields import short
from .wire_images import UnknownImageError

__all__ = ["LONGEST_MESSAGE", "error_from_wire", "error_to_wire", "plain_error"]

LONGEST_MESSAGE = 2000
"""The most characters of a message, which may show a value that a client has sent."""


class _WireError(NamedTuple):
    """One code. kind: the class that is sent as this code, and raised for it by a client.

    retryable: the same request may succeed later, or elsewhere.
    raised: False if a server sends the code without raising an exception.
    """

    code: str
    kind: type[PybatcherError]
    retryable: bool = False
    raised: bool = True


# An error is sent as the first line whose class it has; a code without a type is raised as the
# class of its first line. So subclasses come before their bases.
_ERRORS = (
    _WireError("too_long", RequestTooLongError),
    _WireError("unknown_image", UnknownImageError, retryable=True),
    _WireError("invalid_request", InvalidRequestError),
    _WireError("invalid_request", ConfigError),
    _WireError("invalid_request", ModelFormatError),
    _WireError("queue_full", QueueFullError, retryable=True),  # after `retry_after_ms`
    _WireError("deadline_exceeded", DeadlineExceededError),
    _WireError("cancelled", PybatcherError, raised=False),
    _WireError("shutting_down", BatcherClosedError, retryable=True),
    _WireError("unknown_method", InvalidRequestError, raised=False),
    _WireError("duplicate_id", InvalidRequestError, raised=False),
    _WireError("engine_failed", EngineFailedError),
    _WireError("engine_failed", NoFreeSequenceError, retryable=True),
    _WireError("engine_failed", KvCacheFullError, retryable=True),
    # the request did not cause it
    _WireError("engine_failed", ConnectionLostError, retryable=True),
)
_OTHERS = _WireError("engine_failed", EngineError)
_OF_CODE = {line.code: line.kind for line in reversed(_ERRORS)}
_TYPES = {
    name: kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, PybatcherError)
}


def plain_error(code: str, message: str) -> dict[str, Any]:
    """Return the error map of a code for which no exception was raised."""
    return {"code": code, "message": _cut(message), "retryable": False}


def error_to_wire(error: BaseException) -> dict[str, Any]:
    """Return the error map for a client. Never raises."""
    line = next((e for e in _ERRORS if e.raised and isinstance(error, e.kind)), _OTHERS)
    name = type(error).__name__
    wire: dict[str, Any] = {
        "code": line.code,
        "message": _cut(_message(error)),
        "retryable": line.retryable,
        "type": name,
    }
    if isinstance(error, PybatcherError):
        if error.field is not None:
            wire["field"] = _cut(error.field)
    else:
        wire["message"] = _cut(f"{name}: {_message(error)}")
    if isinstance(error, QueueFullError):
        wire["retry_after_ms"] = _milliseconds(error.retry_after)
    return wire


def error_from_wire(wire: object) -> PybatcherError:
    """Return the error that a client raises; a ProtocolError if `wire` is no error map."""
    if not isinstance(wire, Mapping):
        return ProtocolError(f"the error is {short(wire)}; it must be a map with code and message")
    code, message, name = (_text(wire.get(key)) for key in ("code", "message", "type"))
    if code is None or message is None:
        return ProtocolError(f"the error is {short(wire)}; its code and message must be texts")
    message = message or f"an error {short(code)} that came without a message"
    kind = _TYPES.get(name or "") or _OF_CODE.get(code)
    if kind is None:
        return EngineError(f"{short(code)}: {message}")
    if issubclass(kind, QueueFullError):
        return kind(message, _seconds(wire.get("retry_after_ms")))
    return kind(message, field=_text(wire.get("field")))


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the `__str__` of a foreign class
        return f"a {type(error).__name__} that cannot be shown"


def _cut(message: str) -> str:
    """Return a message of at most LONGEST_MESSAGE characters, valid in UTF-8."""
    if len(message) > LONGEST_MESSAGE:
        message = message[: LONGEST_MESSAGE - 1] + "…"
    if message.isascii():
        return message
    return message.encode("utf-8", "replace").decode()


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _milliseconds(seconds: float) -> int:
    """Return milliseconds, rounded up, since a client that returns too early is refused again."""
    return math.ceil(min(max(seconds, 0.0), 1e9) * 1000) if seconds == seconds else 0


def _seconds(milliseconds: object) -> float:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, (int, float)):
        return 0.0
    return milliseconds / 1000 if 0 <= milliseconds <= 1e12 else 0.0
