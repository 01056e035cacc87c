"""A sidecar in processes of its own, for benchmarks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.engines.engine_list import ROOT
from bench.serving.process_watch import n_files
from pybatcher import Client
from pybatcher.errors import PybatcherError

__all__ = ["Sidecar", "is_gone", "open_sidecar"]

_TIMEOUT = 120.0  # seconds for loading a model, or for the end of a process


class Sidecar:
    """A running sidecar.

    socket: its path. pid: of the front process. log: the file with its stderr.
    """

    def __init__(
        self,
        folder: Path,
        arguments: Mapping[str, Any],
        *,
        watched: bool,
        before: Sequence[str] = (),
    ) -> None:
        self.socket, self.log = folder / "bench.sock", folder / "log"
        told = {"socket": str(self.socket), **arguments}
        command = [sys.executable, "-m"]
        if watched:
            command += ["bench.serving.watched_server", json.dumps(told)]
        else:
            command += ["pybatcher", "serve"]
            for name, value in told.items():
                command += [f"--{name.replace('_', '-')}", str(value)]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*before, *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
            )
        self.pid = self._process.pid

    @property
    def is_alive(self) -> bool:
        """True while the front process runs."""
        return self._process.poll() is None

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Pids of the serving worker and, if there is one, of the standby worker."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return tuple(map(int, children.split()))  # the oldest first

    @property
    def n_files(self) -> int:
        """Number of descriptors of the front, without the two that it holds per worker."""
        n_workers = len(self.worker_pids)
        return n_files(self.pid) - 2 * n_workers

    def said(self) -> str:
        """Return the log so far."""
        return self.log.read_text(errors="replace")

    async def ready(self) -> None:
        """Wait until the model is loaded. Raises RuntimeError with the log if that fails."""
        end = time.monotonic() + _TIMEOUT
        while self.is_alive and time.monotonic() < end:
            # It has not started yet, or the log will contain the error.
            with suppress(PybatcherError):
                async with Client(self.socket, connect_timeout=1.0) as client:
                    await client.tokenize("ready?")
                    return
        raise RuntimeError(f"the sidecar does not serve:\n{self.said()}")

    def close(self) -> dict[str, float]:
        """End the sidecar with SIGTERM; return percentiles of its lag in seconds, if watched."""
        self._process.send_signal(signal.SIGTERM)
        output, _ = self._process.communicate(timeout=_TIMEOUT)
        if self._process.returncode != 0:
            raise RuntimeError(f"the sidecar ended with {self._process.returncode}:\n{self.said()}")
        lag: dict[str, float] = json.loads(output or "{}")
        return lag

    def kill(self) -> None:
        """Kill the front if it still runs, and close the pipe."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def open_sidecar(
    *, watched: bool = False, before: Sequence[str] = (), **arguments: Any
) -> Iterator[Sidecar]:
    """Start a sidecar with its socket in a temporary folder; kill it at the end of the context.

    watched: measure its event loop's lag, which costs a little. before: a command that runs the
    server's command with `exec`. arguments: `model` and options of
    `pybatcher serve`, by name.
    """
    folder = Path(tempfile.mkdtemp(prefix="pybatcher-bench-"))
    running = Sidecar(folder, arguments, watched=watched, before=before)
    try:
        yield running
    finally:
        running.kill()
        shutil.rmtree(folder)


def is_gone(pid: int) -> bool:
    """True if the process has ended and its parent has collected it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
