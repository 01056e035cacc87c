"""The servers with OpenAI's API that `bench.http_compare` measures: pybatcher's and llama.cpp's.

Both serve one GGUF file, in processes of their own. OpenVINO Model Server is missing, because no
package index has it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from bench.engines.engine_list import ROOT
from bench.serving.process_watch import cpu_seconds

__all__ = ["LLAMA_SERVER", "SERVERS", "RunningServer", "ServedModel", "start_server"]

LLAMA_SERVER = ROOT / ".venv-rivals/bin/llama-server"
_TIMEOUT = 120.0  # seconds for loading a model, or for an answer


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model to serve. length: the most positions of one sequence."""

    file: Path
    n_threads: int
    n_parallel: int
    length: int

    @property
    def n_ctx(self) -> int:
        """The positions of all sequences together."""
        return self.n_parallel * self.length


def pybatcher_command(model: ServedModel, port: int, options: Mapping[str, Any]) -> list[str]:
    """Return the command of `pybatcher serve`. options: its options, by name.

    The server runs without drafts, because random weights repeat themselves more than texts do.
    """
    own: dict[str, Any] = {"n_threads": model.n_threads, "n_parallel": model.n_parallel}
    own |= {"n_ctx": model.n_ctx, "max_draft_tokens": 0, "log_level": "warning", **options}
    told = [text for name, v in own.items() for text in (f"--{name.replace('_', '-')}", str(v))]
    serve = [sys.executable, "-m", "pybatcher", "serve", "--no-socket"]
    where = ["--http", f"127.0.0.1:{port}", "--served-model-name", "bench"]
    return [*serve, *where, "--model", str(model.file), *told]


def llama_server_command(model: ServedModel, port: int, options: Mapping[str, Any]) -> list[str]:
    """Return the command of `llama-server`. options: pybatcher's, which it does not have.

    Every sequence has a slot with all positions that it can need.
    """
    sizes = {"--threads": model.n_threads, "--threads-batch": model.n_threads}
    sizes |= {"--parallel": model.n_parallel, "--ctx-size": model.n_ctx}
    told = [text for name, value in sizes.items() for text in (name, str(value))]
    where = ["--host", "127.0.0.1", "--port", str(port), "--alias", "bench"]
    chosen = ["--cont-batching", "--flash-attn", "on", "--no-webui"]
    return [str(LLAMA_SERVER), "--model", str(model.file), *where, *told, *chosen]


SERVERS = {"pybatcher": pybatcher_command, "llama-server": llama_server_command}
"""The command of each server, pybatcher's first."""


class RunningServer:
    """A running server. url: the URL of its API. command: its command line. pid: its process."""

    def __init__(self, command: list[str], url: str, process: subprocess.Popen[bytes]) -> None:
        self.command, self.url, self._process = command, url, process
        self.pid = process.pid

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """GET the path, or POST a body as JSON; return the JSON of the answer."""
        data = None if body is None else json.dumps(body).encode()
        asked = Request(self.url + path, data, {"content-type": "application/json"})
        with urlopen(asked, timeout=_TIMEOUT) as answer:
            return json.loads(answer.read())

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the process and of its children so far."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sum(cpu_seconds(pid) for pid in (self.pid, *map(int, children)))

    def wait_until_ready(self, log: Path) -> None:
        """Return when the model is served. Raises RuntimeError with the log if that fails."""
        end = time.monotonic() + _TIMEOUT
        while self._process.poll() is None and time.monotonic() < end:
            try:
                self.ask("/health")
                return
            except HTTPError as refusal:
                refusal.close()
            except OSError:
                pass
            time.sleep(0.1)
        said = log.read_text(errors="replace")
        raise RuntimeError(f"{' '.join(self.command)} does not serve:\n{said}")

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def start_server(
    name: str, model: ServedModel, options: Mapping[str, Any]
) -> Iterator[RunningServer]:
    """Start a server of SERVERS and wait until it serves; end it with the context.

    options: of `pybatcher serve`.
    """
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = int(sock.getsockname()[1])
    command = SERVERS[name](model, port, options)
    with tempfile.TemporaryDirectory(prefix="served-") as folder:
        log = Path(folder) / "log"
        with log.open("wb") as said:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=ROOT,
                env={**os.environ, "LLAMA_CACHE": folder},
            )  # fmt: skip
        server = RunningServer(command, f"http://127.0.0.1:{port}", process)
        try:
            server.wait_until_ready(log)
            yield server
        finally:
            server.close()
