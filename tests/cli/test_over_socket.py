"""Commands with `--socket`, over a real sidecar, do the same as without it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from command_line import Outcome, Run
from serving_doubles import Serving, start_serving

from pybatcher import BlockingClient
from pybatcher.cli import over_socket
from pybatcher.cli.over_socket import connect
from pybatcher.errors import ConnectionLostError

STORY = "Once upon a time"


@pytest.mark.parametrize(
    "options",
    [
        "--max-tokens 12",
        "--max-tokens 12 --temperature 1 --seed 7",
        "--max-tokens 8 --temperature 1 --seed 7 --n 3",
        "--max-tokens 24 --stop boy --priority 5",
    ],
)
def test_generate_prints_the_same_over_a_socket(run: Run, sidecar: Serving, options: str) -> None:
    arguments = ["generate", *options.split(), STORY]
    outcome = run(*arguments)
    assert outcome.status == 0
    assert run(*arguments, "--socket", str(sidecar.socket)) == outcome


def test_several_continuations_are_told_apart(run: Run) -> None:
    first = run("generate", "--max-tokens", "8", "--temperature", "1", "--seed", "7", STORY)
    options = ["--max-tokens", "8", "--temperature", "1", "--seed", "7", "--n", "2"]
    lines = run("generate", *options, STORY).stdout.splitlines()
    assert lines[0::2] == ["-- 1", "-- 2"]
    assert lines[1] + "\n" == first.stdout
    assert lines[3] != lines[1]


def test_chat_answers_the_same_over_a_socket(run: Run, sidecar: Serving) -> None:
    stdin = b"Tell me a story about a fox.\nWho was it about?\n/reset\nWho was it about?\n"
    greedy = ["--max-tokens", "16", "--temperature", "0"]
    outcome = run("chat", *greedy, stdin=stdin)
    assert outcome.status == 0
    over = run("chat", "--socket", str(sidecar.socket), *greedy, stdin=stdin)
    assert over == outcome


def test_a_chat_outlives_the_sidecar(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [start_serving(tmp_path)]
    questions = ["What is 2 plus 3?"] * 3

    def typed(prompt: str) -> str:
        if not questions:
            raise EOFError
        if len(questions) == 2:
            running[-1].process.terminate()
            assert running[-1].wait() == 0
            running.append(start_serving(tmp_path))
        return questions.pop()

    monkeypatch.setattr("builtins.input", typed)
    try:
        outcome = run("chat", "--socket", str(running[0].socket), "--temperature", "0")
    finally:
        running[-1].process.terminate()
        running[-1].wait()
    assert outcome.status == 0
    answered, failed = outcome.stdout.count("2 plus 3 is 5."), outcome.stderr.count("error: ")
    assert (answered, failed) == (2, 1)
    assert "made anew" in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (["generate", STORY, "--n-ctx", "64"], "--n-ctx"),
        (["generate", STORY, "--model", "x"], "--model"),
        (["generate", STORY, "--system-prompt", "Be brief."], "--system-prompt"),
        (["chat", "--batch-timeout", "0.5"], "--batch-timeout"),
        (["top", "--n-parallel", "2"], "--n-parallel"),
        (["top", "--demo-load", "2"], "--demo-load"),
        (["top", "--max-tokens", "2"], "--max-tokens"),
    ],
)
def test_options_of_the_sidecars_own_process_are_refused(
    run: Run, sidecar: Serving, arguments: list[str], refused: str
) -> None:
    outcome = run(*arguments, "--socket", str(sidecar.socket))
    assert (outcome.status, outcome.stdout) == (2, "")
    assert outcome.stderr.startswith("error: ")
    assert refused in outcome.stderr
    assert "--socket" in outcome.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", STORY, "--max-tokens", "4", "--socket"],
        ["generate", "--socket", "--max-tokens", "4", STORY],
        ["generate", "--max-tokens", "4", "--socket", "--", STORY],
    ],
)
def test_without_a_path_it_is_the_default_one(
    run: Run,
    sidecar: Serving,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    (tmp_path / "pybatcher.sock").symlink_to(sidecar.socket)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with BlockingClient(sidecar.socket) as client:
        before = client.statistics().completed
        outcome = run(*arguments)
        assert client.statistics().completed == before + 1
    assert outcome == run("generate", "--max-tokens", "4", STORY)


def test_without_a_path_and_a_default_one_it_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    outcome = run("generate", STORY, "--socket")
    assert outcome.status == 2
    assert "XDG_RUNTIME_DIR" in outcome.stderr


def test_a_prompt_may_look_like_the_option(run: Run) -> None:
    expected = run("generate", "--max-tokens", "8", "-", stdin=b"--socket")
    assert expected.status == 0
    assert run("generate", "--max-tokens", "8", "--", "--socket") == expected


@pytest.mark.parametrize("command", [["generate", STORY], ["chat"], ["top"], ["reload"]])
def test_no_listener_is_reported_at_once(run: Run, tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "none.sock"
    outcome = run(*command, "--socket", str(path))
    assert outcome == Outcome(2, "", outcome.stderr)
    assert outcome.stderr.startswith(f"error: no process listens at {path} (No such file")
    assert "pybatcher serve" in outcome.stderr


# -- other listeners --------------------------------------------------------------------------


async def test_a_stale_socket_file(tmp_path: Path) -> None:
    path = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    with pytest.raises(ConnectionLostError, match="Connection refused"):
        await connect(str(path))


async def test_a_path_that_is_too_long() -> None:
    with pytest.raises(ConnectionLostError, match="too long"):
        await connect("/tmp/" + "x" * 200)


async def test_a_listener_that_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(over_socket, "_ANSWER_TIMEOUT", 0.05)
    async with _listening(tmp_path / "mute.sock", None) as path:
        with pytest.raises(ConnectionLostError, match=r"does not answer within 0\.05 s"):
            await connect(path)


async def test_a_listener_that_refuses_the_connection(tmp_path: Path) -> None:
    async with _listening(tmp_path / "p.sock", [2, "refused", ["this user may not connect"]]) as at:
        with pytest.raises(ConnectionLostError, match="this user may not connect"):
            await connect(at)


async def test_a_listener_that_closes_the_connection(tmp_path: Path) -> None:
    async with _listening(tmp_path / "p.sock", []) as path:
        with pytest.raises(ConnectionLostError, match=str(path)):
            await connect(path)


@asynccontextmanager
async def _listening(path: Path, said: list[Any] | None) -> AsyncIterator[str]:
    """Listen on a socket, send each peer these bytes and close; None: keep it open silently."""
    come: list[asyncio.StreamWriter] = []

    async def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        come.append(writer)
        if said is not None:
            writer.write(msgpack.packb(said) if said else b"")
            writer.close()

    async with await asyncio.start_unix_server(connected, path):
        yield str(path)
        for writer in come:
            writer.close()
