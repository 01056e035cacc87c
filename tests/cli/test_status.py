from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgpack
import pytest
from command_line import Run
from serving_doubles import Serving

from pybatcher import BlockingClient
from pybatcher.cli import status as status_command
from pybatcher.cli.status import Status, ask_status, show_status
from pybatcher.sidecar.protocol.sidecar_statistics import SidecarStatistics, no_counts

READY = {"status": "ready", "reason": "requests are served", "ok": True}
OPENING = {"status": "new", "reason": "the model is being opened (12%)", "ok": False}
HELLO = {"model": "tiny", "version": "1.2.3", "limits": {"n_ctx": 64}}


def counts(**changes: Any) -> dict[str, Any]:
    """Return statistics as they come over the wire."""
    own = {"worker_restarts": 0, "replayed_requests": 0, "connections": 1, "in_flight": 0}
    found = {**asdict(no_counts()), **own, "worker_pids": (), **changes}
    return asdict(SidecarStatistics(**found))


def lines(text: str) -> dict[str, str]:
    """Return the status output, by name."""
    return {
        label: told.strip() for label, _, told in (s.partition("  ") for s in text.splitlines())
    }


def test_of_a_sidecar_that_serves(run: Run, sidecar: Serving) -> None:
    with BlockingClient(sidecar.socket) as client:
        client.generate("Once upon a time", max_tokens=3)
    outcome = run("status", "--socket", str(sidecar.socket))
    assert (outcome.status, outcome.stderr) == (0, "")
    told = lines(outcome.stdout)
    assert told["state"] == "ready: requests are served"
    assert told["model"] == "tiny"
    assert told["workers"] == ", ".join(map(str, sidecar.worker_pids()))
    assert told["restarts"].startswith("0 of the worker, 0 of the engine")
    assert told["in flight"] == "0 requests: 0 run, 0 wait"
    assert told["KV"].startswith("256 blocks: 0% in use")


def test_for_programs(run: Run, sidecar: Serving) -> None:
    outcome = run("status", "--socket", str(sidecar.socket), "--json")
    assert (outcome.status, outcome.stdout.count("\n")) == (0, 1)
    found = json.loads(outcome.stdout)
    assert (found["ready"], found["model"]) == (True, "tiny")
    assert found["health"]["status"] == "ready"
    assert found["limits"]["n_ctx"] == 8192
    assert found["statistics"]["worker_pids"] == list(sidecar.worker_pids())
    assert found["socket"] == str(sidecar.socket)


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_no_listener_is_status_2(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    outcome = run("status", "--socket", str(tmp_path / "none.sock"), *arguments)
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("error: no process listens at ")


def test_by_default_it_asks_the_default_socket(
    run: Run, sidecar: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert run("status").status == 2
    (tmp_path / "pybatcher.sock").symlink_to(sidecar.socket)
    for arguments in ([], ["--socket"], ["--socket", "--json"]):
        assert run("status", *arguments).status == 0


# -- a sidecar that is not ready ------------------------------------------------------------------


async def test_a_model_that_is_being_opened_is_not_waited_for(tmp_path: Path) -> None:
    answers = {"health": OPENING, "statistics": counts()}
    async with _answering(tmp_path / "p.sock", answers) as path:
        found = await ask_status(path)
    assert not found.is_ready
    assert found.as_map()["model"] is None
    assert found.as_map()["health"] == OPENING


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_not_ready_is_status_1(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    async def ask(path: str) -> Status:
        return Status(path, OPENING, counts(), None)

    monkeypatch.setattr(status_command, "ask_status", ask)
    outcome = run("status", "--socket", "/run/p.sock", *arguments)
    assert (outcome.status, outcome.stderr) == (1, "")
    assert "being opened (12%)" in outcome.stdout


# -- the picture ----------------------------------------------------------------------------------


def test_every_count_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    statistics = counts(
        worker_pids=(11, 12),
        worker_restarts=2,
        restarts=3,
        replayed_requests=4,
        connections=5,
        in_flight=6,
        running=4,
        queued=2,
        completed=1234,
        cancelled=7,
        expired=8,
        failed=9,
        generated_tokens=5678,
        prompt_tokens=910,
        cached_tokens=110,
        kv_total_blocks=200,
        kv_free_blocks=100,
        kv_cached_blocks=40,
    )
    show_status(Status("/run/p.sock", READY, statistics, HELLO))
    output = capsys.readouterr().out
    assert all(len(line) <= 80 for line in output.splitlines())
    assert lines(output) == {
        "socket": "/run/p.sock",
        "state": "ready: requests are served",
        "model": "tiny",
        "version": "1.2.3",
        "workers": "11, 12",
        "restarts": "2 of the worker, 3 of the engine in it; 4 requests went on",
        "connections": "5",
        "in flight": "6 requests: 4 run, 2 wait",
        "ended": "1,234 completed, 7 cancelled, 8 expired, 9 failed",
        "tokens": "5,678 generated; 910 of prompts, 110 of these cached",
        "KV": "200 blocks: 30% in use, 20% cached",
    }


def test_without_a_worker_there_is_no_kv(capsys: pytest.CaptureFixture[str]) -> None:
    show_status(Status("/run/p.sock", OPENING, counts(), None))
    told = lines(capsys.readouterr().out)
    assert (told["model"], told["workers"]) == ("not open", "none")
    assert told["KV"] == "0 blocks: 0% in use, 0% cached"


def test_what_a_sidecar_says_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    hello = {**HELLO, "model": "[red]model[/red] [/]"}
    show_status(Status("/run/p.sock", READY, counts(), hello))
    assert "[red]model[/red] [/]" in capsys.readouterr().out


@asynccontextmanager
async def _answering(path: Path, answers: dict[str, Any]) -> AsyncIterator[str]:
    """Serve one connection with these answers, and leave other questions unanswered."""
    gone = asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        unpacker = msgpack.Unpacker()
        while data := await reader.read(4096):
            unpacker.feed(data)
            for _, number, method, _ in unpacker:
                if method in answers:
                    writer.write(msgpack.packb([1, number, None, answers[method]]))
        writer.close()
        await writer.wait_closed()
        gone.set()

    async with await asyncio.start_unix_server(connected, path):
        yield str(path)
        await gone.wait()


def test_what_a_sidecar_says_does_not_control_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hello = {**HELLO, "model": "a\x1b]0;title\x07b\x9b2J"}
    show_status(Status("/run/p.sock", READY, counts(), hello))
    assert "a\x1b]0;title" in capsys.readouterr().out  # no terminal
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    show_status(Status("/run/p.sock", READY, counts(), hello))
    told = capsys.readouterr().out
    assert lines(told)["model"] == r"a\x1b]0;title\x07b\x9b2J"
    assert not {"\x1b", "\x07", "\x9b"} & {*told}
