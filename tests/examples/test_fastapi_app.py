from __future__ import annotations

import importlib.util
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

import pybatcher
from pybatcher import BlockingBatcher, Health

STORY = "Once upon a time"
LONG = {"prompt": STORY, "max_tokens": 1500, "ignore_eos": True}
PATIENCE = 60.0  # seconds for what takes one or two


@pytest.fixture(scope="module")
def uds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A socket file: no port that somebody else may have."""
    return tmp_path_factory.mktemp("uvicorn") / "http.sock"


@pytest.fixture(scope="module")
def http(examples: Path, uds: Path) -> Iterator[httpx.Client]:
    """The app, served by uvicorn, and who asks it."""
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(examples), "fastapi_app:app"]
    with (
        subprocess.Popen([*command, "--uds", str(uds)], stderr=subprocess.PIPE) as process,
        httpx.Client(
            transport=httpx.HTTPTransport(uds=str(uds)), base_url="http://app", timeout=PATIENCE
        ) as client,
    ):
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if b"running on" in line:
                    break
            assert process.poll() is None
            yield client
        finally:
            process.send_signal(signal.SIGINT)
            process.stderr.read()
    assert process.returncode == 0


@pytest.fixture(scope="module")
def story() -> str:
    with BlockingBatcher() as batcher:
        return batcher.generate(STORY, max_tokens=24).text


def test_an_answer(http: httpx.Client, story: str) -> None:
    response = http.post("/generate", json={"prompt": STORY, "max_tokens": 24})
    assert response.status_code == 200
    answer = response.json()
    assert answer["text"] == story
    assert answer["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 24


def test_a_stream_comes_in_pieces(http: httpx.Client, story: str) -> None:
    asked = {"prompt": STORY, "max_tokens": 24}
    with http.stream("POST", "/stream", json=asked) as response:
        assert response.headers["content-type"] == "text/plain; charset=utf-8"
        pieces = list(response.iter_text())
    assert "".join(pieces) == story
    assert len(pieces) > 1


@pytest.mark.parametrize("path", ["/generate", "/stream"])
@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"prompt": ""}, "prompt is ''"),
        ({"heat": 1}, "heat"),
        ({"priority": "high"}, "priority is 'high'"),
        ({"params": {}}, "params is {}"),
    ],
)
def test_a_bad_value_is_400(
    http: httpx.Client, path: str, wrong: dict[str, Any], complaint: str
) -> None:
    response = http.post(path, json={"prompt": STORY, **wrong})
    assert response.status_code == 400
    assert complaint in response.json()["error"]


def test_a_deadline_that_is_over_is_504(http: httpx.Client) -> None:
    response = http.post("/generate", json={**LONG, "timeout": 1e-6})
    assert response.status_code == 504


def test_who_hangs_up_in_the_middle_of_a_stream_cancels_it(http: httpx.Client) -> None:
    before = _counts(http)
    with http.stream("POST", "/stream", json=LONG) as response:
        assert next(response.iter_text())
    _until(lambda: _counts(http)["cancelled"] == before["cancelled"] + 1)
    assert _counts(http)["running"] == 0


def test_who_hangs_up_before_the_answer_cancels_it(http: httpx.Client, uds: Path) -> None:
    before = _counts(http)
    body = json.dumps(LONG).encode()
    head = "POST /generate HTTP/1.1\r\nHost: app\r\nContent-Type: application/json\r\n"
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(uds))
        caller.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        _until(lambda: _counts(http)["submitted"] == before["submitted"] + 1)
    _until(lambda: _counts(http)["cancelled"] == before["cancelled"] + 1)
    assert _counts(http)["completed"] == before["completed"]


def test_health(http: httpx.Client) -> None:
    response = http.get("/health")
    assert (response.status_code, response.json()["status"]) == (200, "ready")


def _counts(http: httpx.Client) -> dict[str, int]:
    counts: dict[str, int] = http.get("/statistics").json()
    return counts


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


# -- errors that a small load does not meet -----------------------------------------------------


class Refusing:
    """A batcher that can do nothing, and says why."""

    def __init__(self, error: pybatcher.PybatcherError) -> None:
        self.error = error

    async def generate(self, prompt: str, **_: Any) -> object:
        raise self.error

    async def stream(self, prompt: str, **_: Any) -> AsyncIterator[object]:
        raise self.error
        yield

    def health(self) -> Health:
        return Health("failed", str(self.error))


@pytest.fixture(scope="module")
def module(examples: Path) -> ModuleType:
    """The app in this process."""
    spec = importlib.util.spec_from_file_location("fastapi_app", examples / "fastapi_app.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["fastapi_app"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", ["/generate", "/stream"])
@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (pybatcher.QueueFullError("full", 2.25), 429, {"retry-after": "3"}),
        (pybatcher.RequestTooLongError("too long"), 400, {}),
        (pybatcher.BatcherClosedError("closes"), 503, {}),
        (pybatcher.EngineFailedError("broken"), 500, {}),
    ],
)
async def test_typed_errors_become_statuses(
    module: ModuleType,
    path: str,
    error: pybatcher.PybatcherError,
    status: int,
    headers: dict[str, str],
) -> None:
    module.app.state.batcher = Refusing(error)
    transport = httpx.ASGITransport(module.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        response = await client.post(path, json={"prompt": STORY})
        health = await client.get("/health")
    assert response.status_code == status
    assert response.json() == {"error": str(error)}
    assert headers.items() <= dict(response.headers).items()
    assert (health.status_code, health.json()["status"]) == (503, "failed")
