"""A model by its name on the hub, which is on localhost, in every way that a model is named."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import runner
from fake_hub import FakeHub, Repository, fake_hub, model_files
from serving_doubles import serving

from pybatcher import Batcher, BlockingBatcher, BlockingClient, Engine
from pybatcher.errors import ModelFormatError
from pybatcher.models import tiny_path

TEXT, COMMIT = "Once upon a time", "a" * 40


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    files = model_files(tiny_path())
    bare = {name: files[name] for name in ("config.json", "model.safetensors")}
    repositories = {"org/tiny": Repository(files), "org/bare": Repository(bare)}
    with fake_hub(repositories) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture(scope="module")
def expected() -> str:
    with BlockingBatcher() as batcher:
        return batcher.generate(TEXT, max_tokens=8).text


async def test_batchers(hub: FakeHub, expected: str) -> None:
    seen: list[tuple[int, int]] = []
    async with Batcher("org/tiny", progress=lambda *counts: seen.append(counts)) as batcher:
        assert (await batcher.generate(TEXT, max_tokens=8)).text == expected
        assert batcher.runtime.name == "tiny"
    assert len({total for _, total in seen}) > 1
    hub.requests.clear()
    with BlockingBatcher(f"org/tiny@{COMMIT}") as blocking:
        assert blocking.generate(TEXT, max_tokens=8).text == expected
    assert hub.requests == []


async def test_errors_of_a_batcher(hub: FakeHub) -> None:
    with pytest.raises(ModelFormatError, match="'org/none': no such directory or GGUF file"):
        async with Batcher("org/none"):
            pass
    hub.requests.clear()
    with pytest.raises(ModelFormatError, match="no such directory or GGUF file; a model is given"):
        async with Batcher(Path("org/tiny")):
            pass
    assert hub.requests == []


def test_engine(hub: FakeHub) -> None:
    Engine.load("org/tiny", n_ctx=512).close()
    assert "model.safetensors" in hub.downloads()


def test_command_line(
    hub: FakeHub, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runner(monkeypatch, capsys)
    said = run("generate", "--model", "org/tiny", TEXT, "--max-tokens", "8")
    assert (said.status, said.stdout) == (0, f"{expected}\n")
    facts = run("info", "--model", "org/tiny").stdout
    assert f"org/tiny@{COMMIT}" in facts
    refused = run("info", "--model", "hf:org/tiny/x.gguf")
    assert refused.status
    assert "none of the repository's GGUF files" in refused.stderr


def test_a_sidecar_asks_once(hub: FakeHub, tmp_path: Path, expected: str) -> None:
    """Neither a worker that is started again nor a reload to the same model asks the hub."""
    socket = ("--model", "x=org/tiny")
    with serving(tmp_path, *socket) as running, BlockingClient(running.socket) as client:
        assert client.generate(TEXT, max_tokens=8).text == expected
        hub.requests.clear()
        hub.repositories["org/tiny"].commits["main"] = "b" * 40
        (pid,) = client.statistics().worker_pids
        os.kill(pid, signal.SIGKILL)
        assert client.generate(TEXT, max_tokens=8).text == expected
        client.reload(model="org/tiny")
        assert hub.requests == []
        client.reload(model="org/bare")
        assert client.generate([1, 2], max_tokens=2).token_ids
        assert "model.safetensors" in hub.downloads()
        hub.requests.clear()
        os.kill(client.statistics().worker_pids[-1], signal.SIGKILL)
        assert client.generate([1, 2], max_tokens=2).token_ids
        assert hub.requests == []
        with pytest.raises(ModelFormatError, match="'org/none': no such directory or GGUF file"):
            client.reload(model="org/none")
        assert client.generate([1, 2], max_tokens=2).token_ids


def test_a_sidecar_that_finds_no_model(hub: FakeHub, tmp_path: Path) -> None:
    with serving(tmp_path, "--model", "org/none", wait=False) as running:
        assert running.wait() == 2
        assert "'org/none': no such directory or GGUF file" in running.said()
