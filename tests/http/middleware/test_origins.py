from __future__ import annotations

from typing import Any

import pytest

from pybatcher import ConfigError
from pybatcher.http.middleware.origins import AllowedOrigins, Origins, check_origins

LOCAL, PUBLIC = "127.0.0.1", "192.0.2.1"


async def asked(
    origin: str | None, host: str, server: str, *allowed: str, method: str = "POST", **more: str
) -> tuple[int, dict[bytes, bytes]]:
    """Return status and headers; the application's own status is 299."""
    sent: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 299, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {"host": host, **more} | ({} if origin is None else {"origin": origin})
    named = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "method": method, "path": "/v1/models", "headers": named}
    await Origins(application, allowed=AllowedOrigins(allowed))(
        {**scope, "server": (server, 80)}, None, send
    )  # type: ignore[arg-type]
    return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.parametrize(
    ("origin", "host", "server", "status"),
    [
        (None, "here", LOCAL, 299),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", LOCAL, 299),
        ("http://localhost:8000", "LOCALHOST:8000", LOCAL, 299),
        ("http://[::1]:8000", "[::1]:8000", "::1", 299),
        ("https://page.example", "page.example", PUBLIC, 299),
        ("https://page.example", "127.0.0.1:8000", LOCAL, 403),
        ("http://localhost:3000", "localhost:8000", LOCAL, 403),
        ("http://page.example:8000", "page.example:8000", LOCAL, 403),  # its name leads here
        ("null", "127.0.0.1:8000", LOCAL, 403),
        ("http://[", "127.0.0.1:8000", LOCAL, 403),
        ("", "", LOCAL, 403),
    ],
)
async def test_pages_of_the_server_may_ask_it(
    origin: str | None, host: str, server: str, status: int
) -> None:
    found, headers = await asked(origin, host, server)
    assert found == status
    assert b"access-control-allow-origin" not in headers


async def test_allowed_pages_may_ask_and_read() -> None:
    page = "https://page.example"
    for allowed in (page, "*"):
        status, headers = await asked(page, "127.0.0.1", LOCAL, allowed)
        assert (status, headers[b"access-control-allow-origin"]) == (299, page.encode())
        assert headers[b"vary"] == b"origin"
        status, headers = await asked(
            page,
            "127.0.0.1",
            LOCAL,
            allowed,
            method="OPTIONS",
            access_control_request_method="POST",
            access_control_request_headers="authorization",
        )
        assert (status, headers[b"access-control-allow-headers"]) == (204, b"authorization")
        assert headers[b"access-control-allow-origin"] == page.encode()
    assert (await asked("http://page.example", "127.0.0.1", LOCAL, page))[0] == 403


@pytest.mark.parametrize("origins", ["*", ["page.example"], ["https://a/"], [5], 5, ["https://"]])
def test_origins_that_are_none(origins: Any) -> None:
    with pytest.raises(ConfigError, match="allow_origins must be"):
        check_origins(origins)
