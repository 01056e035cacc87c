"""Every error that pybatcher raises on purpose.

    PybatcherError
    ├── ConfigError              an option has a value that cannot work
    ├── ModelFormatError         a checkpoint is damaged, incomplete or of an unknown kind
    ├── InvalidRequestError      this request can never be served as it is written
    │   └── RequestTooLongError  ... because it needs more positions than there are
    ├── QueueFullError           the queue is full; `retry_after` is the time until a retry
    ├── DeadlineExceededError    the request's own `timeout` ran out
    ├── BatcherClosedError       the batcher was closed, or closes, under the request
    ├── ProtocolError            a peer of the sidecar broke the protocol
    ├── ConnectionLostError      the connection to the sidecar was lost, or cannot be made
    └── EngineError              the compiled engine could not execute a call
        ├── NoFreeSequenceError  all `n_parallel` sequences are in use
        ├── KvCacheFullError     no KV block is left for the tokens of this call
        └── EngineFailedError    the engine is broken, for this request or for all

Each message names the field, its value and the remedy. Errors that a caller of the standard library
would expect also have its type: a `ConfigError` is a `ValueError`, a `DeadlineExceededError` a
`TimeoutError`.
"""

from __future__ import annotations

__all__ = [
    "BatcherClosedError",
    "ConfigError",
    "ConnectionLostError",
    "DeadlineExceededError",
    "EngineError",
    "EngineFailedError",
    "InvalidRequestError",
    "KvCacheFullError",
    "ModelFormatError",
    "NoFreeSequenceError",
    "ProtocolError",
    "PybatcherError",
    "QueueFullError",
    "RequestTooLongError",
]


class PybatcherError(Exception):
    """Base of all errors that pybatcher raises on purpose.

    field: the argument or option that the error is about, with the position in it ("stop[2]",
        "messages[0].content"); None for an error that is not about a single one.
    """

    field: str | None = None

    def __init__(self, *args: object, field: str | None = None) -> None:
        super().__init__(*args)
        if field is not None:
            self.field = field


class ConfigError(PybatcherError, ValueError):
    """An option has a value that cannot work."""


class ModelFormatError(PybatcherError, ValueError):
    """A checkpoint is damaged, incomplete or of an unknown kind."""


class InvalidRequestError(PybatcherError, ValueError):
    """This request can never be served as it is written."""


class RequestTooLongError(InvalidRequestError):
    """The request needs more positions than a sequence can have."""


class QueueFullError(PybatcherError):
    """The queue is full.

    `retry_after`: seconds after which another attempt is reasonable.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[QueueFullError], tuple[str, float]]:
        return type(self), (str(self), self.retry_after)


class DeadlineExceededError(PybatcherError, TimeoutError):
    """The request's own `timeout` ran out before its first token or its answer."""


class BatcherClosedError(PybatcherError, RuntimeError):
    """The batcher was closed before or while it served the request."""


class ProtocolError(PybatcherError):
    """A peer of the sidecar broke the protocol."""


class ConnectionLostError(PybatcherError, ConnectionError):
    """The connection to the sidecar was lost, or cannot be made.

    The outcome of the requests in flight is unknown.
    """


class EngineError(PybatcherError, RuntimeError):
    """The compiled engine could not execute a call. Nothing changed."""


class NoFreeSequenceError(EngineError):
    """All `n_parallel` sequences are in use."""


class KvCacheFullError(EngineError):
    """No KV block is left for the tokens of this call."""


class EngineFailedError(EngineError):
    """The engine is broken: for this request, or for all."""
