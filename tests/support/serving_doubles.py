"""A real `pybatcher serve` in a process of its own, for tests that talk to it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pybatcher import BlockingClient
from pybatcher.errors import ConnectionLostError

PATIENCE = 60.0  # seconds for what takes one or two


@dataclass
class Serving:
    """One that runs. `log`: the file its stderr goes to."""

    process: subprocess.Popen[bytes]
    socket: Path
    log: Path

    def worker_pids(self) -> tuple[int, ...]:
        with BlockingClient(self.socket) as client:
            return tuple(client.statistics().worker_pids)

    @property
    def url(self) -> str:
        """Where it serves HTTP over TCP, as its log says."""
        return self.logged(r"listening on (http://\S+)")

    @property
    def worker_pid(self) -> int:
        """The worker that was started last, as the log says."""
        return int(self.logged(r"worker (\d+) serves "))

    def logged(self, pattern: str) -> str:
        """Wait for a line of its log; the last of what the pattern has in parentheses."""
        end = time.monotonic() + PATIENCE
        while not (found := re.findall(pattern, self.said())):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < end, self.said()
            time.sleep(0.02)
        last: str = found[-1]
        return last

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(PATIENCE)

    def said(self) -> str:
        return self.log.read_text()


def start_serving(folder: Path, *arguments: str, wait: bool = True, **more: Any) -> Serving:
    """Start it with its socket in `folder`, or `--no-socket`, and wait until it serves."""
    folder.chmod(0o700)
    socket, log = folder / "p.sock", folder / "serve.log"
    command = [sys.executable, "-m", "pybatcher", "serve"]
    command += [] if "--no-socket" in arguments else ["--socket", str(socket)]
    command += ["--n-threads", "1", *arguments]  # two would wait for each other beside other tests
    with log.open("ab") as stderr:
        process = subprocess.Popen(command, stderr=stderr, stdin=subprocess.DEVNULL, **more)
    serving = Serving(process, socket, log)
    if wait and "--no-socket" in arguments:
        assert serving.worker_pid
    elif wait:
        wait_until_ready(serving)
    return serving


def wait_until_ready(serving: Serving) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        assert serving.process.poll() is None, serving.said()
        with suppress(ConnectionLostError), BlockingClient(serving.socket) as client:
            client.tokenize("ready?")  # waits for the model
            return
        assert time.monotonic() < end, serving.said()
        time.sleep(0.02)


@contextmanager
def serving(folder: Path, *arguments: str, **more: Any) -> Iterator[Serving]:
    """One for the time of a test; it ends well when the test does."""
    running = start_serving(folder, *arguments, **more)
    try:
        yield running
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGTERM)
            assert running.wait() == 0, running.said()
        assert not running.socket.exists()
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


def is_running(pid: int) -> bool:
    """Not ended; whoever adopts orphans here may be slow to reap them."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
