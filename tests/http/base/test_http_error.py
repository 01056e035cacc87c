from __future__ import annotations

import json

import pytest

from pybatcher import errors
from pybatcher.http.base.http_error import HttpError, http_error, refusal


@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (errors.InvalidRequestError("stop is 3", field="stop"), 400, "invalid_value", "stop"),
        (
            errors.InvalidRequestError("tools[0].name is 'a b'", field="tools[0].name"),
            400,
            "invalid_value",
            "tools[0].name",
        ),
        (errors.InvalidRequestError("stop is 3"), 400, "invalid_value", None),
        (
            errors.RequestTooLongError("prompt has 9 tokens", field="prompt"),
            400,
            "context_length_exceeded",
            "prompt",
        ),
        (
            errors.ModelFormatError("chat_template: stopped", field="chat_template"),
            400,
            "invalid_value",
            "chat_template",
        ),
        (errors.QueueFullError("full", 0.25), 429, "queue_full", None),
        (errors.DeadlineExceededError("late"), 504, "deadline_exceeded", None),
        (errors.BatcherClosedError("closed"), 503, "unavailable", None),
        (errors.ConnectionLostError("lost"), 503, "unavailable", None),
        (errors.KvCacheFullError("full"), 503, "overloaded", None),
        (errors.EngineFailedError("broken"), 500, "engine_failed", None),
    ],
)
def test_what_a_client_is_told(
    error: errors.PybatcherError, status: int, code: str, param: str | None
) -> None:
    told = http_error(error)
    assert (told.status, told.code, told.param) == (status, code, param)
    assert told.body()["error"]["message"] == str(error)


def test_when_to_come_back_and_when_not() -> None:
    full = http_error(errors.QueueFullError("full", 1.25)).headers
    assert full == {"retry-after": "2", "retry-after-ms": "1250"}
    for kind in (errors.DeadlineExceededError, errors.EngineFailedError, errors.KvCacheFullError):
        assert http_error(kind("it ran")).headers == {"x-should-retry": "false"}
    assert HttpError(404, "no").headers == {}


def test_what_is_no_unicode_can_be_told_all_the_same() -> None:
    response = refusal(
        HttpError(400, "a\ud800 is no ä", param="\ud800"), {"path": "/v1/models", "headers": []}
    )
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    told = json.loads(response.body)["error"]
    assert (told["message"], told["param"]) == ("a? is no ä", "?")
