"""`pybatcher serve` with several models: each has a worker, a queue and an end of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_model import chat_model
from command_line import runner
from serving_doubles import PATIENCE, Serving, is_running, serving

from pybatcher import BlockingClient
from pybatcher.models import tiny_path

pytestmark = pytest.mark.slow

ROOM = ("--http", "127.0.0.1:0", "--n-ctx", "8192", "--n-parallel", "4")
ASKED = {"prompt": "Once upon a time", "max_tokens": 600, "seed": 7, "ignore_eos": True}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models of different files, whose chats begin in different ways."""
    return {"plain": tiny_path(), "tools": chat_model(tmp_path_factory.mktemp("models"))}


@pytest.fixture
def given(paths: dict[str, Path]) -> list[str]:
    return [word for name, path in paths.items() for word in ("--model", f"{name}={path}")]


def pid_of(running: Serving, path: Path) -> int:
    """The worker of a model that was started last."""
    return int(running.logged(rf"worker (\d+) serves {path.name} "))


async def streamed(http: httpx.AsyncClient, model: str, begun: asyncio.Event) -> str:
    """The text of a completion."""
    text = ""
    body = {**ASKED, "model": model, "stream": True}
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
                begun.set()
    return text


async def both(http: httpx.AsyncClient, act: Any) -> dict[str, str]:
    """A stream of each model, with an act when both have begun."""
    begun = {name: asyncio.Event() for name in ("plain", "tools")}
    asking = [asyncio.ensure_future(streamed(http, name, one)) for name, one in begun.items()]
    for one in begun.values():
        await one.wait()
    act()
    return dict(zip(begun, await asyncio.gather(*asking), strict=True))


async def test_the_death_of_one_worker_is_nothing_to_the_other(
    tmp_path: Path, given: list[str], paths: dict[str, Path]
) -> None:
    with serving(tmp_path, *ROOM, "--no-socket", *given) as running:
        pids = {name: pid_of(running, path) for name, path in paths.items()}
        async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE) as http:
            undisturbed = await both(http, lambda: None)
            assert len(undisturbed["plain"]) > 100
            killed = await both(http, lambda: os.kill(pids["tools"], signal.SIGKILL))
            assert killed == undisturbed
            assert "1 calls go on" in running.said()
            assert pid_of(running, paths["plain"]) == pids["plain"]
            assert pid_of(running, paths["tools"]) != pids["tools"]

            texts = [{"model": name, "prompt": "<think>"} for name in paths]
            ids = [(await http.post("/tokenize", json=body)).json()["tokens"] for body in texts]
            assert len(ids[0]) > len(ids[1])  # one token of one of them only
            told = (await http.get("/v1/models")).json()["data"]
            assert [one["id"] for one in told] == ["plain", "tools"]
            absent = await http.post("/v1/completions", json={**ASKED, "model": "other"})
            assert absent.status_code == 404
            assert "there is: plain, tools" in absent.json()["error"]["message"]
            counts = await counted(http)
            assert counts["plain"] == 1200.0
            assert 0.0 < counts["tools"] <= 1200.0  # less what the killed one had not reported


async def counted(http: httpx.AsyncClient) -> dict[str, float]:
    """Generated tokens by model, as Prometheus reads them."""
    from prometheus_client.parser import text_string_to_metric_families

    text = (await http.get("/metrics")).text
    assert text.count("# HELP pybatcher:generation_tokens_total ") == 1
    return {
        sample.labels["model_name"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "pybatcher:generation_tokens_total"
    }


async def test_one_that_cannot_be_served_leaves_the_other_until_a_reload(
    tmp_path: Path, given: list[str], paths: dict[str, Path]
) -> None:
    sockets = ("--socket", str(tmp_path / "{model}.sock"), "--max-worker-restarts", "0")
    arguments = [*ROOM, *sockets, *given]
    with serving(tmp_path, *arguments, wait=False) as running:
        for path in paths.values():
            pid_of(running, path)
        async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE) as http:
            assert (await http.get("/health")).status_code == 200
            os.kill(pid_of(running, paths["tools"]), signal.SIGKILL)
            running.logged("(no worker can be had)")
            health = await http.get("/health")
            assert health.status_code == 503
            assert {name: one["status"] for name, one in health.json()["models"].items()} == {
                "plain": "ready",
                "tools": "failed",
            }
            body = {**ASKED, "max_tokens": 2}
            answers = [await http.post("/v1/completions", json={**body, "model": name})
                       for name in paths]  # fmt: skip
            assert [answer.status_code for answer in answers] == [200, 500]
            with BlockingClient(tmp_path / "tools.sock") as client:
                client.reload(n_ctx=4096)
                assert client.generate("Once", max_tokens=2).token_ids
            assert (await http.get("/health")).status_code == 200
            with BlockingClient(tmp_path / "plain.sock") as client:  # it has its own figures
                assert client.statistics().completed == 1
                assert client.statistics().worker_restarts == 0
            os.kill(pid_of(running, paths["plain"]), signal.SIGKILL)
            while (await http.get("/health")).status_code == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.2)  # what ends by a mistake takes a moment
            assert (await http.post("/v1/completions", json={**body, "model": "tools"})).is_success
            os.kill(pid_of(running, paths["tools"]), signal.SIGKILL)
        assert running.wait() == 1


def test_sighup_reads_the_models_again(tmp_path: Path, paths: dict[str, Path]) -> None:
    file = tmp_path / "options.toml"

    def write(names: dict[str, Path], n_ctx: int) -> None:
        models = "".join(f'{name} = "{path}"\n' for name, path in names.items())
        file.write_text(f"n_ctx = {n_ctx}\nno_socket = true\n[models]\n{models}")

    write(paths, 4096)
    arguments = ("--http", "127.0.0.1:0", "--no-socket", "--config", str(file))
    with serving(tmp_path, *arguments) as running:
        first = [pid_of(running, path) for path in paths.values()]
        write({**paths, "more": tiny_path()}, 2048)
        running.process.send_signal(signal.SIGHUP)
        running.logged("not reloaded, all is as it was: (the models are plain, tools, more now)")
        assert all(map(is_running, first))
        write(paths, 2048)
        running.process.send_signal(signal.SIGHUP)
        for path in paths.values():
            running.logged(rf"reloaded: ({path.name}) serves")
        assert not {pid_of(running, path) for path in paths.values()} & set(first)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    return runner(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "a=x", "--model", "b=y"), "{model} in its path, or no_socket"),
        (("--model", "a=x", "--model", "b=y", "--socket", "p.sock"), "{model} in its path"),
        (("--model", "a=x", "--model", "y"), "give each a name, as NAME=PATH"),
        (("--model", "a=x", "--model", "a=y"), "two models have the name 'a'"),
        (("--model", "a=x", "--served-model-name", "b"), "served_model_name"),
        (("--model", "=x"), "the name ''"),
        (("--model", "a="), "models.a is ''"),
        (("--model", "a/b=x", "--socket", "{model}.sock"), "the model's name is 'a/b'"),
    ],
)
def test_what_models_cannot_be_is_said(run: Any, arguments: tuple[str, ...], said: str) -> None:
    outcome = run("serve", "--http", "127.0.0.1:0", *arguments)
    assert outcome.status == 2
    assert said in outcome.stderr.splitlines()[-1]
