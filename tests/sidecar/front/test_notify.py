"""What an init system is told, over sockets of both kinds."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybatcher.sidecar.front import notify
from pybatcher.sidecar.front.notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def told(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Notifier, socket.socket]]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@pybatcher-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name.replace("@", "\0"))
        sock.settimeout(0)  # what was sent is there
        yield Notifier.from_environ({"NOTIFY_SOCKET": name}), sock


def test_states(told: tuple[Notifier, socket.socket]) -> None:
    notifier, sock = told
    notifier.ready()
    notifier.stopping()
    notifier.status("serving 3 requests")
    assert [sock.recv(1000) for _ in range(3)] == [
        b"READY=1",
        b"STOPPING=1",
        b"STATUS=serving 3 requests",
    ]


def test_a_reload_says_when_it_began(told: tuple[Notifier, socket.socket]) -> None:
    notifier, sock = told
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    first, second = sock.recv(1000).decode().split("\n")
    name, _, value = second.partition("=")
    assert (first, name) == ("RELOADING=1", "MONOTONIC_USEC")
    assert before <= int(value) <= after


def test_a_status_is_one_variable(told: tuple[Notifier, socket.socket]) -> None:
    notifier, sock = told
    notifier.status("loading\nREADY=1\udc80\r\n é")
    assert sock.recv(1000) == b"STATUS=loading READY=1\x80 \xc3\xa9"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}])
def test_without_an_init_system_nothing_is_said(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "socket", None)
    notifier = Notifier.from_environ(environ)
    notifier.ready()
    notifier.reloading()
    notifier.status("x")
    notifier.stopping()
    assert not caplog.records


@pytest.mark.parametrize("name", ["/nonexistent/notify", "/" + "x" * 200, "vsock:2:5", "/\ud800"])
def test_who_cannot_be_told_is_logged(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pybatcher"):
        Notifier(name).ready()
    assert len(caplog.records) == 1
    assert "cannot be told" in caplog.text


def test_who_does_not_read_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_SEND_TIMEOUT", 0.01)
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(name)
        with caplog.at_level(logging.WARNING, "pybatcher"):
            for _ in range(10_000):
                if caplog.records:
                    break
                Notifier(name).ready()
    assert "timed out" in caplog.text
