"""Replicas on a real Ray: `make test-ray` installs it and runs these tests.

They need what only a registry has, and half a gigabyte of it, so `make test` does not collect them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

if os.environ.get("PYBATCHER_TEST_SUITES") != "ray":
    collect_ignore_glob = ["test_*.py"]

# Ray's own patience is that of a machine with idle cores. Read when its modules are imported.
for name, seconds in {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
    "RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "5",
    "RAY_SERVE_MAX_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "20",
}.items():
    os.environ.setdefault(name, seconds)

OPTIONS: dict[str, Any] = {"n_ctx": 32768, "n_parallel": 16, "n_threads": 1, "num_cpus": 1}
NAME = f"batcher-{os.getpid()}"  # in the titles of the replicas' processes, and in no other's


def replica_pids(name: str = NAME) -> list[int]:
    """The processes of the replicas of an application of this test."""
    title = f"ray::ServeReplica:{name}:{name}-replica"
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if words.startswith(title):
            pids.append(int(path.parent.name))
    return sorted(pids)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def start(folder: str, tries: int = 5) -> None:
    """Ray gives its own processes 30 s to start, which may be too little on a busy machine."""
    import ray

    for left in reversed(range(tries)):
        try:
            ray.init(
                num_cpus=16,
                include_dashboard=False,
                object_store_memory=100 * 2**20,
                log_to_driver=False,
                _temp_dir=folder,
            )
            return
        except Exception:
            ray.shutdown()
            if not left:
                raise


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """Where Ray Serve listens: Ray on this machine, with little memory and without a dashboard."""
    import ray
    from ray import serve

    port = free_port()
    with TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # its sockets' paths are short
        start(folder)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()
        ray.shutdown()


@pytest.fixture(scope="session")
def deployed(url: str) -> str:
    """The URL of two replicas with HTTP before them."""
    from ray import serve

    import pybatcher.ray

    app = pybatcher.ray.deployment(name=NAME, num_replicas=2, **OPTIONS)
    serve.run(app, name=NAME, route_prefix="/")
    return url


@pytest.fixture
def handle(deployed: str) -> Any:
    """Of the replicas themselves."""
    from ray import serve

    return serve.get_deployment_handle(f"{NAME}-replica", NAME)
