"""A worker ends with its front, and what is meant for the front does not end it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serving_doubles import PATIENCE, is_running

from pybatcher.sidecar.front.guard import PARENT_VARIABLE

pytestmark = pytest.mark.usefixtures("path_for_doubles")

FRONT = """
import asyncio, sys
from pybatcher.sidecar.front.worker_process import WorkerProcess

async def main():
    worker = WorkerProcess.spawn(["deaf", sys.argv[1]], module="worker_double")
    await worker.wait()

asyncio.run(main())
"""


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.set_inheritable(True)
        yield theirs


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("system")
def test_it_is_killed_with_its_front_though_it_hears_nothing(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", FRONT, str(note)]) as front:
        until(lambda: note.exists() and note.read_text())
        pid = int(note.read_text())
        assert is_running(pid)
        front.kill()
    until(lambda: not is_running(pid))


def test_a_stopped_one_is_killed_too(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", FRONT, str(note)]) as front:
        until(lambda: note.exists() and note.read_text())
        os.kill(int(note.read_text()), signal.SIGSTOP)
        front.kill()
    until(lambda: not is_running(int(note.read_text())))


def child(sock: socket.socket, front: int | None, shell: str = 'exec "$@"') -> int:
    """The exit status of a guarded process that was told who its front is, started by `shell`."""
    command = [sys.executable, "-m", "worker_double", str(sock.fileno()), "exit", "0"]
    own = {} if front is None else {PARENT_VARIABLE: str(front)}
    with subprocess.Popen(
        ["sh", "-c", shell, "sh", *command],
        pass_fds=(sock.fileno(),),
        env={**os.environ, **own},
    ) as process:
        return process.wait(PATIENCE)


@pytest.mark.usefixtures("system")
def test_it_exits_where_its_front_has_ended_before_it_began(sock: socket.socket) -> None:
    assert child(sock, os.getpid() + 1) == 3


@pytest.mark.usefixtures("system")
def test_it_goes_on_under_its_front_and_without_any(sock: socket.socket) -> None:
    assert child(sock, os.getpid()) == 0
    assert child(sock, None) == 0


def test_a_process_without_stderr_can_be_guarded(sock: socket.socket) -> None:
    assert child(sock, None, 'exec "$@" 2>&-') == 0
