"""The units: what systemd says of them, and what has to hold for them to do their work."""

from __future__ import annotations

import configparser
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from serving_doubles import Serving, wait_until_ready

from pybatcher import BlockingClient
from pybatcher.cli import COMMANDS
from pybatcher.sidecar.front.serve_config import ServeConfig, read_config


@pytest.fixture(scope="module")
def units(examples: Path) -> Path:
    return examples / "systemd"


def unit(path: Path) -> configparser.ConfigParser:
    """Of one kind of section each. None of ours gives an option twice."""
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    assert parser.read(path)
    return parser


def test_systemd_finds_nothing_wrong(units: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    for name in ("pybatcher.service", "pybatcher.socket"):
        text = (units / name).read_text()  # it looks for the program, which is not there
        (tmp_path / name).write_text(text.replace("/opt/pybatcher/bin/pybatcher", sys.executable))
    outcome = subprocess.run(
        [analyze, "verify", "--man=no", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_the_service_is_told_what_the_sidecar_does(units: Path) -> None:
    service = unit(units / "pybatcher.service")["Service"]
    assert service["Type"] == "notify"  # it says READY=1
    assert service["KillMode"] == "mixed"  # the worker has to live while the front drains
    assert service["Restart"] == "on-failure"  # status 1: no worker can be had
    assert service["RestartPreventExitStatus"] == "2"  # refused options
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["Environment"] == "XDG_CACHE_HOME=%C"  # where CacheDirectory= is made


def test_the_command_is_one(units: Path) -> None:
    _, command, option, config = unit(units / "pybatcher.service")["Service"]["ExecStart"].split()
    assert (command, option) == ("serve", "--config")
    assert config == "/etc/pybatcher.toml"
    assert command in COMMANDS


def test_nothing_of_the_hardening_is_in_the_sidecars_way(units: Path) -> None:
    service = unit(units / "pybatcher.service")["Service"]
    assert "PrivateUsers" not in service  # clients' user ids would all look the same
    assert service["RestrictAddressFamilies"] == "AF_UNIX"
    assert service["NoNewPrivileges"] == service["LockPersonality"] == "yes"
    assert "@system-service" in service["SystemCallFilter"]  # threads' affinity is in it


def test_systemd_is_more_patient_than_the_sidecar(units: Path) -> None:
    service = unit(units / "pybatcher.service")["Service"]
    config = ServeConfig(
        **{
            name: value
            for name, value in read_config(units / "pybatcher.toml").items()
            if name in ServeConfig.__dataclass_fields__
        }
    )
    assert float(service["TimeoutStopSec"]) > config.drain_timeout
    assert config.socket is None, "it is systemd's"
    assert 0 in config.allow_uids, "the service has a user of its own: root is somebody else, too"


def test_the_socket_is_the_services_own(units: Path) -> None:
    socket = unit(units / "pybatcher.socket")["Socket"]
    service = unit(units / "pybatcher.service")
    assert socket["ListenStream"] == "/run/pybatcher.sock"
    assert socket["SocketMode"] == "0666"  # who may connect is decided by user id
    assert service["Unit"]["Requires"] == "pybatcher.socket"
    assert "Accept" not in socket, "one service for all connections"


def test_it_serves_on_a_socket_that_systemd_has_made(tmp_path: Path) -> None:
    activate = shutil.which("systemd-socket-activate")
    if activate is None:
        pytest.skip("systemd-socket-activate is not installed")
    with _activated(activate, tmp_path) as running:
        with BlockingClient(running.socket) as client:
            assert client.generate("Once upon a time", max_tokens=3).text
        running.process.send_signal(signal.SIGTERM)
        assert running.wait() == 0, running.said()
    assert running.socket.exists(), "it is not the sidecar's to remove"


@contextmanager
def _activated(activate: str, folder: Path) -> Iterator[Serving]:
    path, log = folder / "p.sock", folder / "serve.log"
    folder.chmod(0o700)
    command = [sys.executable, "-m", "pybatcher", "serve"]
    keep = [f"--setenv={name}" for name in ("PYTHONPATH", "XDG_CACHE_HOME") if name in os.environ]
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            [activate, f"--listen={path}", *keep, *command], stderr=stderr, stdin=subprocess.DEVNULL
        )
    running = Serving(process, path, log)
    try:
        wait_until_ready(running)  # it starts when somebody connects
        yield running
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
