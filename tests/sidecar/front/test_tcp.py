"""Addresses of TCP: how they are read, and sockets that listen at them."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any

import pytest

from pybatcher import ConfigError
from pybatcher.sidecar.front.tcp import TcpAddress, is_loopback, listen_on, read_address, url_of


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_an_address(text: str, address: tuple[str, int]) -> None:
    assert read_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        None,
        8000,
        "",
        "8000",
        ":8000",
        "host:",
        "host:65536",
        "host:-1",
        "host:http",
        "::1:8000",
        "http://host:80",
        "a b:80",
        "host:٣",
    ],
)
def test_what_is_no_address(text: object) -> None:
    assert read_address(text) is None


def test_all_addresses_of_a_name_have_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = (socket.SOCK_STREAM, 6, "")
    found: list[tuple[Any, ...]] = [
        (socket.AF_INET, *stream, ("127.0.0.1", 0)),
        (socket.AF_INET, *stream, ("127.0.0.2", 0)),
        (socket.AF_INET, *stream, ("192.0.2.1", 0)),  # an address that no machine has: RFC 5737
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with ExitStack() as stack:
        sockets = [stack.enter_context(s) for s in listen_on(TcpAddress("here", 0), backlog=3)]
        (host, port), (other_host, other_port) = (sock.getsockname() for sock in sockets)
        assert (host, other_host) == ("127.0.0.1", "127.0.0.2")
        assert port == other_port != 0
        assert url_of(sockets[0]) == f"http://127.0.0.1:{port}"
        assert all(map(is_loopback, sockets))


def test_every_address_is_not_loopback() -> None:
    (sock,) = listen_on(TcpAddress("0.0.0.0", 0), backlog=3)
    with sock:
        assert not is_loopback(sock)


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("192.0.2.1", "cannot be listened on"),
        ("no.such.host.invalid", "names a host that is not known"),
        ("a" * 70, "names a host that cannot be one"),
    ],
)
def test_what_cannot_be_listened_on(host: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"http, which is '{host}:0', {why}"):
        listen_on(TcpAddress(host, 0), backlog=3)
