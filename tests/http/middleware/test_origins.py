from __future__ import annotations

from typing import Any

import pytest

from pybatcher import ConfigError
from pybatcher.http.middleware.origins import (
    AllowedOrigins,
    Origins,
    check_hosts,
    check_origins,
)

LOCAL, PUBLIC = "127.0.0.1", "192.0.2.1"


async def asked(
    origin: str | None,
    host: str,
    server: str,
    *allowed: str,
    method: str = "POST",
    path: str = "/v1/models",
    hosts: tuple[str, ...] = (),
    **more: str,
) -> tuple[int, dict[bytes, bytes]]:
    """Return status and headers; the application's own status is 299."""
    sent: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 299, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {"host": host, **more} | ({} if origin is None else {"origin": origin})
    named = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": named}
    await Origins(application, allowed=AllowedOrigins(allowed, hosts))(
        {**scope, "server": (server, 80)}, None, send
    )  # type: ignore[arg-type]
    return sent[0]["status"], dict(sent[0]["headers"])


@pytest.mark.parametrize(
    ("origin", "host", "server", "status"),
    [
        (None, "", LOCAL, 299),
        (None, "here", PUBLIC, 299),
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


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8000",
        "a.localhost:80",
        "127.0.0.1:8000",
        "[::1]:8000",
        "[::1]",
        "127.9.9.9",
        "192.0.2.7:8000",
        "0.0.0.0:8000",
        "[fe80::1]:8000",
        "localhost.",
    ],
)
async def test_a_server_on_loopback_is_called_by_its_own_names(host: str) -> None:
    for server in (LOCAL, "::1"):
        assert (await asked(None, host, server, method="GET"))[0] == 299


@pytest.mark.parametrize(
    "host",
    [
        "page.example",
        "page.example:8000",
        "127.0.0.1.page.example",
        "localhost.page.example",
        "page.example.",
        "127.0.0.1@page.example",
        "page.example@127.0.0.1",
        "127.0.0.1:x",
        "[",
        "localhost/page.example",
        "2130706433",
        "0x7f.1",
        "page.example:8000:9",
        "xlocalhost",
    ],
)
async def test_a_server_on_loopback_has_no_other_name(host: str) -> None:
    """A page whose name was pointed at loopback sends no `origin` with a GET to itself."""
    for server in (LOCAL, "::1"):
        for path in ("/", "/live", "/metrics", "/v1/models", "/health"):
            status, _ = await asked(None, host, server, method="GET", path=path)
            assert status == 403


async def test_names_of_a_proxy_are_allowed() -> None:
    host = "Chat.Example:8000"
    for allowed in ({"hosts": ("chat.EXAMPLE",)}, {"hosts": ("other.example", "*")}):
        assert (await asked(None, host, LOCAL, **allowed))[0] == 299  # type: ignore[arg-type]
    assert (await asked(None, host, LOCAL, "https://chat.example"))[0] == 299
    assert (await asked(None, host, LOCAL, "*"))[0] == 299
    assert (await asked(None, "a.chat.example", LOCAL, hosts=("chat.example",)))[0] == 403
    # An allowed name is not yet an allowed page.
    assert (await asked("http://other", host, LOCAL, hosts=("*",)))[0] == 403


@pytest.mark.parametrize("server", [LOCAL, PUBLIC])
async def test_requests_that_another_site_causes_are_refused(server: str) -> None:
    async def status(path: str, *allowed: str, site: str = "cross-site", **more: str) -> int:
        more |= {"sec_fetch_site": site, "path": path}
        return (await asked(None, "127.0.0.1", server, *allowed, method="GET", **more))[0]

    for mode, dest in [("no-cors", "image"), ("navigate", "iframe"), ("navigate", "document")]:
        how = {"sec_fetch_mode": mode, "sec_fetch_dest": dest}
        assert await status("/live", **how) == 403
        assert await status("/live", "https://page.example", **how) == 403
        assert await status("/live", "*", **how) == 299
        for site in ("same-origin", "none"):
            assert await status("/live", site=site, **how) == 299
        # A link that leads to the page is followed.
        assert await status("/", **how) == (299 if dest == "document" else 403)
    page = "https://page.example"
    more = {"sec_fetch_site": "cross-site"}
    assert (await asked(page, "127.0.0.1", server, page, **more))[0] == 299


@pytest.mark.parametrize("hosts", ["*", ["https://a"], [5], 5, ["a:80"], ["a/"], [""], ["*.a"]])
def test_hosts_that_are_none(hosts: Any) -> None:
    with pytest.raises(ConfigError, match="allow_hosts must be"):
        check_hosts(hosts)
