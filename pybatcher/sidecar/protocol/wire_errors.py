"""Errors on the wire: {code, message, retryable, retry_after_ms?, type}.

    code               what it is made of                          retryable
    invalid_request    InvalidRequestError, ConfigError,           no
                       ModelFormatError
    too_long           RequestTooLongError                         no
    queue_full         QueueFullError                              yes, after `retry_after_ms`
    deadline_exceeded  DeadlineExceededError                       no
    cancelled          (nothing is raised)                         no
    shutting_down      BatcherClosedError                          yes, elsewhere or later
    unknown_method     (nothing is raised)                         no
    duplicate_id       (nothing is raised)                         no
    engine_failed      everything else                             those of `_CAN_HELP`

`type` is the name of the class, for clients that have such classes. Others go by the code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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

__all__ = ["LONGEST_MESSAGE", "error_from_wire", "error_to_wire", "plain_error"]

LONGEST_MESSAGE = 2000
"""Characters of a message, which may show what a client has sent."""

_CODES: tuple[tuple[type[PybatcherError], str], ...] = (  # the first that fits
    (RequestTooLongError, "too_long"),
    (InvalidRequestError, "invalid_request"),
    (ConfigError, "invalid_request"),
    (ModelFormatError, "invalid_request"),
    (QueueFullError, "queue_full"),
    (DeadlineExceededError, "deadline_exceeded"),
    (BatcherClosedError, "shutting_down"),
)
_CAN_HELP = (
    QueueFullError,
    BatcherClosedError,
    NoFreeSequenceError,
    KvCacheFullError,
    ConnectionLostError,  # the way was lost and not the request: it may be asked again
)
_TYPES = {
    name: kind
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, PybatcherError)
}
_TYPE_OF_CODE: dict[str, type[PybatcherError]] = {
    "invalid_request": InvalidRequestError,
    "too_long": RequestTooLongError,
    "queue_full": QueueFullError,
    "deadline_exceeded": DeadlineExceededError,
    "cancelled": PybatcherError,
    "shutting_down": BatcherClosedError,
    "unknown_method": InvalidRequestError,
    "duplicate_id": InvalidRequestError,
    "engine_failed": EngineFailedError,
}


def plain_error(code: str, message: str) -> dict[str, Any]:
    """Return the map of an error for which no exception was raised."""
    return {"code": code, "message": _cut(message), "retryable": False}


def error_to_wire(error: BaseException) -> dict[str, Any]:
    """Return the map that a client is sent for an error. Raises nothing."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), "engine_failed")
    name = type(error).__name__
    wire: dict[str, Any] = {
        "code": code,
        "message": _cut(_message(error)),
        "retryable": isinstance(error, _CAN_HELP),
        "type": name,
    }
    if not isinstance(error, PybatcherError):
        wire["message"] = _cut(f"{name}: {_message(error)}")
    if isinstance(error, QueueFullError):
        wire["retry_after_ms"] = _milliseconds(error.retry_after)
    return wire


def error_from_wire(wire: object) -> PybatcherError:
    """Return the error that a client raises; a ProtocolError for a map that is none.

    Raises nothing itself.
    """
    if not isinstance(wire, Mapping):
        return ProtocolError(f"the error is {short(wire)}; it must be a map with code and message")
    code, message, name = (_text(wire.get(key)) for key in ("code", "message", "type"))
    if code is None or message is None:
        return ProtocolError(f"the error is {short(wire)}; its code and message must be texts")
    kind = _TYPES.get(name or "") or _TYPE_OF_CODE.get(code)
    if kind is None:
        return EngineError(f"{short(code)}: {message}")
    if issubclass(kind, QueueFullError):
        return kind(message, _seconds(wire.get("retry_after_ms")))
    return kind(message)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # the __str__ of a class that is not ours
        return f"a {type(error).__name__} that cannot be shown"


def _cut(message: str) -> str:
    """Return the message cut to `LONGEST_MESSAGE`, as valid UTF-8."""
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
    """Return milliseconds, rounded up: a client that comes back a little late finds room."""
    return math.ceil(min(max(seconds, 0.0), 1e9) * 1000) if seconds == seconds else 0


def _seconds(milliseconds: object) -> float:
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, (int, float)):
        return 0.0
    return milliseconds / 1000 if 0 <= milliseconds <= 1e12 else 0.0
