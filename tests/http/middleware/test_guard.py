from __future__ import annotations

from typing import Any

import pytest

from pybatcher import ConfigError
from pybatcher.calls.backpressure import CURRENT_BACKPRESSURE, Backpressure
from pybatcher.http.middleware.guard import Guard


async def asked(guard: Guard, path: str = "/v1/models", **headers: str) -> tuple[int, Any, Any]:
    """Return status, headers and the namespace that the application saw."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "headers": named}
    await guard(scope, None, send)  # type: ignore[arg-type]
    return sent[0]["status"], dict(sent[0]["headers"]), scope.get("pybatcher.namespace")


ONE_BESIDE_STALE = {"x_api_key": "one", "authorization": "Bearer three"}


async def application(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def test_keys_are_namespaces() -> None:
    guard = Guard(application, api_keys=["one", "two"])
    status, _, first = await asked(guard, authorization="Bearer one")
    assert status == 200
    assert (await asked(guard, x_api_key="one"))[2] == first
    assert (await asked(guard, authorization="bearer  two"))[2] not in (None, first)
    for stale in ({"x_api_key": "three", "authorization": "Bearer one"}, ONE_BESIDE_STALE):
        status, _, namespace = await asked(guard, **stale)
        assert (status, namespace) == (200, first), "either key suffices"
    for headers in (
        {},
        {"x_api_key": "three", "authorization": "Bearer four"},
        {"x_api_key": "three", "authorization": "Basic one"},
        {"x_api_key": "three"},
        {"authorization": "Basic one"},
        {"x_api_key": "on"},
    ):
        status, told, _ = await asked(guard, **headers)
        assert (status, told[b"www-authenticate"]) == (401, b"Bearer")
    assert (await asked(guard, "/health"))[0] == 200
    assert "one" not in str(first)


async def test_without_keys_nobody_is_asked() -> None:
    guard = Guard(application, api_keys=None)
    status, _, namespace = await asked(guard)
    assert (status, namespace) == (200, None)


@pytest.mark.parametrize("error", [None, ValueError])
async def test_what_is_read_is_watched_for_one_request(error: type[Exception] | None) -> None:
    seen: list[Backpressure | None] = []

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        seen.append(CURRENT_BACKPRESSURE.get())
        await application(scope, receive, send)
        if error is not None:
            raise error

    guard = Guard(watched, api_keys=None)
    for _ in range(2):
        if error is None:
            await asked(guard)
        else:
            with pytest.raises(error):
                await asked(guard)
        assert CURRENT_BACKPRESSURE.get() is None  # of the program whose task this is
    assert None not in seen
    assert seen[0] is not seen[1]


@pytest.mark.parametrize("keys", [[], "secret", b"secret", [""], [5], ["ä"]])
def test_keys_that_are_none(keys: Any) -> None:
    with pytest.raises(ConfigError, match="api_keys"):
        Guard(application, api_keys=keys)
