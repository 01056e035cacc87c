"""`HttpError`: an error with an HTTP status, in the forms of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from ...errors import (
    BatcherClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    InvalidRequestError,
    KvCacheFullError,
    ModelFormatError,
    NoFreeSequenceError,
    PybatcherError,
    QueueFullError,
    RequestTooLongError,
)
from ...errors.checks import short
from ...web import http_headers, http_status

__all__ = [
    "HttpError",
    "error_body",
    "http_error",
    "internal_error",
    "is_anthropic",
    "refusal",
]

_MODELS = "/v1/models"
_VERSION = b"anthropic-version"
_MESSAGES = ("/v1/messages", "/v1/messages/count_tokens")
_TYPES_OF_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


class HttpError(Exception):
    """An error that is sent to the client.

    type, code: the fields of OpenAI's API. param: the wrong field of the request; None: no single
        field is wrong.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def of_field(self, param: str, message: str) -> HttpError:
        """Return a copy of the error with another field and message."""
        return HttpError(
            self.status,
            message,
            type=self.type,
            code=self.code,
            param=param,
            headers=self.headers,
        )

    def body(self) -> dict[str, Any]:
        """Return the body of the response in the form of OpenAI's API."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


def bad(param: str, value: object, wanted: str) -> HttpError:
    """Return the error for a value that is not `wanted`."""
    message = f"{param} is {short(value)}; it must be {wanted}"
    return HttpError(400, message, code="invalid_value", param=param)


def is_anthropic(scope: Mapping[str, Any]) -> bool:
    """Return True if the request uses Anthropic's API. scope: the ASGI scope.

    Both APIs have a list of models; Anthropic's clients name their version of the API.
    """
    path = str(scope["path"])
    if _MODELS in path:
        return any(name == _VERSION for name, _ in scope["headers"])
    return path.endswith(_MESSAGES)


def error_body(error: HttpError, scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the response in the form of the request's API. scope: the ASGI scope."""
    if not is_anthropic(scope):
        return error.body()
    kind = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = _TYPES_OF_ANTHROPIC.get(error.status, kind)
    if error.code == "overloaded":
        kind = "overloaded_error"
    told = {"type": kind, "message": error.message}
    return {"type": "error", "error": told, "request_id": scope.get("pybatcher.request_id")}


def refusal(error: HttpError, scope: Mapping[str, Any]) -> Response:
    """Return the response that reports an error. scope: the ASGI scope."""
    text = json.dumps(error_body(error, scope), ensure_ascii=False, separators=(",", ":"))
    # A message can quote the request, which can contain invalid Unicode.
    body = text.encode("utf-8", "replace")
    return Response(body, error.status, error.headers, "application/json")


def internal_error(error: Exception) -> HttpError:
    """Return the HTTP error for an error that no request should cause."""
    message = f"this request could not be served: {type(error).__name__}"
    return HttpError(500, message, type="server_error", code="internal_error")


def http_error(error: PybatcherError) -> HttpError:
    """Return the HTTP error for an error of a call."""
    status, headers = http_status(error), http_headers(error)
    type, code, param = "server_error", "engine_failed", None
    may_retry = True
    match error:
        case RequestTooLongError():
            type, code, param = "invalid_request_error", "context_length_exceeded", error.field
        case InvalidRequestError() | ModelFormatError():
            type, code, param = "invalid_request_error", "invalid_value", error.field
        case QueueFullError():
            headers["retry-after-ms"] = str(math.ceil(1000 * max(error.retry_after, 0.0)))
            type, code = "rate_limit_error", "queue_full"
        case DeadlineExceededError():
            type, code, may_retry = "timeout_error", "deadline_exceeded", False
        case BatcherClosedError() | ConnectionLostError():
            code = "unavailable"
        # The request ran alone, so that a retry would fail after as many tokens.
        case KvCacheFullError():
            code, may_retry = "overloaded", False
        case NoFreeSequenceError():
            code = "overloaded"
        case _:
            may_retry = False
    if not may_retry:
        headers["x-should-retry"] = "false"
    return HttpError(status, str(error), type=type, code=code, param=param, headers=headers)
