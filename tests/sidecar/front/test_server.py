"""`pybatcher serve` as a process: how it starts, reloads, drains, stops and exits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from command_line import runner
from serving_doubles import PATIENCE, is_running, serving, start_serving

from pybatcher import (
    BatcherClosedError,
    BlockingClient,
    Client,
    ConfigError,
    ModelFormatError,
)

pytestmark = pytest.mark.slow

LONG = {"max_tokens": 3000, "ignore_eos": True, "temperature": 1.0}
ROOM = ("--n-ctx", "16384", "--n-parallel", "4")


@contextlib.asynccontextmanager
async def streaming(client: Client, **params: object) -> AsyncIterator[asyncio.Task[int]]:
    """A stream that has begun; the task: how many tokens it had at its end."""
    stream = client.stream("Once upon a time", **{**LONG, **params})
    await anext(stream)

    async def read() -> int:
        return 1 + sum([len(piece.token_ids) async for piece in stream])

    task = asyncio.ensure_future(read())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


def refused(*arguments: str, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pybatcher", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, **more)  # type: ignore[call-overload,no-any-return]


# -- starts ---------------------------------------------------------------------------------


def test_a_model_that_cannot_be_served_is_said_in_a_line_and_exits_with_2(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    done = refused("--socket", str(tmp_path / "p.sock"), "--model", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "none" in last
    assert not list(tmp_path.glob("*.sock"))


def test_options_that_cannot_be_served_are_said_in_a_line_and_exit_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o700)
    run = runner(monkeypatch, capsys)
    at = ("--socket", str(tmp_path / "p.sock"))
    for arguments, says in (
        ((*at, "--n-ctx", "3"), "n_ctx is 3"),
        ((*at, "--max-connections", "0"), "max_connections is 0"),
        ((*at, "--config", str(tmp_path / "none.toml")), "none.toml"),
        ((*at, "--system-prompt", "a", "--system-prompt-file", "b"), "system_prompt_file"),
        (("--socket", str(tmp_path / "none" / "p.sock")), "none"),
    ):
        outcome = run("serve", *arguments)
        assert (outcome.status, outcome.stdout) == (2, "")
        last = outcome.stderr.splitlines()[-1]
        assert last.startswith("error: ")
        assert says in last
    assert not list(tmp_path.glob("*.sock"))


def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        done = refused("--socket", str(running.socket))
        assert done.returncode == 2
        assert "in use" in done.stderr
        with BlockingClient(running.socket) as client:
            assert client.generate("Once", max_tokens=2).token_ids


def test_without_a_path_it_is_where_clients_look(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "pybatcher", "serve"], env=environ, stderr=subprocess.DEVNULL
    )
    with pytest.MonkeyPatch.context() as patch, BlockingClientLater(patch, tmp_path) as client:
        assert client.model_name == "tiny"
    process.terminate()
    assert process.wait(PATIENCE) == 0


class BlockingClientLater:
    """A client without a path, that waits for its server."""

    def __init__(self, patch: pytest.MonkeyPatch, runtime_dir: Path) -> None:
        patch.setenv("XDG_RUNTIME_DIR", str(runtime_dir))
        self._client = BlockingClient(connect_timeout=PATIENCE)

    def __enter__(self) -> BlockingClient:
        return self._client.__enter__()

    def __exit__(self, *args: object) -> None:
        self._client.close()


async def test_who_comes_while_the_model_is_opened_waits_for_it(tmp_path: Path) -> None:
    running = start_serving(tmp_path, wait=False)
    async with Client(running.socket, connect_timeout=PATIENCE) as client:
        assert (await client.health()).status in ("new", "ready")
        assert client.model_name == "tiny"
        assert (await client.generate("Once", max_tokens=2)).token_ids
        assert (await client.health()).ok
    running.process.terminate()
    assert running.wait() == 0


def test_a_socket_that_was_inherited_is_served_and_left(tmp_path: Path) -> None:
    """As an init system hands it over: descriptor 3, LISTEN_FDS and LISTEN_PID."""
    tmp_path.chmod(0o700)
    path = tmp_path / "theirs.sock"
    with socket.socket(socket.AF_UNIX) as listening, open(tmp_path / "log", "wb") as log:
        listening.bind(str(path))
        listening.listen()
        starter = (
            "import os, sys; os.dup2(int(sys.argv[1]), 3);"
            "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()));"
            "os.execv(sys.executable, [sys.executable, '-m', 'pybatcher', 'serve'])"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", starter, str(listening.fileno())],
            pass_fds=(listening.fileno(), 3),
            stderr=log,
        )
        with BlockingClient(path, connect_timeout=PATIENCE) as client:
            assert client.generate("Once", max_tokens=2).token_ids
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert path.exists()


def test_an_init_system_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(tmp_path / "notify"))
        told.settimeout(PATIENCE)
        environ = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        with serving(tmp_path, env=environ) as running:
            assert told.recv(1000) == b"READY=1"
            running.process.send_signal(signal.SIGHUP)
            assert told.recv(1000).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert told.recv(1000) == b"READY=1"
        assert told.recv(1000) == b"STOPPING=1"


# -- ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
async def test_it_finishes_what_is_in_flight_and_takes_no_more(
    tmp_path: Path, told: signal.Signals
) -> None:
    with serving(tmp_path, *ROOM) as running:
        async with Client(running.socket) as client, streaming(client, max_tokens=600) as stream:
            (pid,) = (await client.statistics()).worker_pids
            os.kill(pid, signal.SIGSTOP)  # so that the stream does not end before the rest
            running.process.send_signal(told)
            while running.socket.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            with pytest.raises(BatcherClosedError):
                await client.generate("Once")
            assert (await client.health()).status in ("ready", "closing")
            os.kill(pid, signal.SIGCONT)
            assert await stream == 600
        assert running.wait() == 0
        assert "being finished" in running.said()


async def test_a_second_interrupt_does_not_wait(tmp_path: Path) -> None:
    with serving(tmp_path, *ROOM) as running:
        async with Client(running.socket) as client, streaming(client) as stream:
            running.process.send_signal(signal.SIGINT)
            while running.socket.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            running.process.send_signal(signal.SIGINT)
            with pytest.raises(BatcherClosedError):
                await stream
        assert running.wait() == 130


async def test_draining_has_its_time(tmp_path: Path) -> None:
    with serving(tmp_path, *ROOM, "--drain-timeout", "0.1") as running:
        async with Client(running.socket) as client, streaming(client) as stream:
            running.process.terminate()
            with pytest.raises(BatcherClosedError):
                await stream
        assert running.wait() == 0
        assert "were not finished" in running.said()


async def test_who_hangs_up_is_forgotten(tmp_path: Path) -> None:
    with serving(tmp_path, *ROOM) as running:
        client = Client(running.socket)
        await client.start()
        await client.add_prefix("Once upon a time", name="mine")
        streams = [client.stream(f"{i}", **LONG) for i in range(8)]
        for stream in streams[:4]:
            await anext(stream)
        await client.close(drain=False)
        async with Client(running.socket) as other:
            while (await other.statistics()).in_flight:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            statistics = await other.statistics()
            assert (statistics.queued, statistics.running, statistics.connections) == (0, 0, 1)
            assert statistics.cancelled >= 4
            assert not await other.prefixes()


# -- workers --------------------------------------------------------------------------------


async def test_what_was_there_is_there_again_after_a_death(tmp_path: Path) -> None:
    with serving(tmp_path, *ROOM) as running:
        async with Client(running.socket) as client:
            await client.generate("Once", max_tokens=20, ignore_eos=True)
            added = await client.add_prefix("Once upon a time there was " * 8, name="mine")
            before = await client.statistics()
            (pid,) = before.worker_pids
            os.kill(pid, signal.SIGKILL)
            assert await client.prefixes() == (added,)
            completion = await client.generate(
                "Once upon a time there was " * 8 + "a", max_tokens=1
            )
            assert completion.usage.cached_tokens >= added.n_tokens - 2
            after = await client.statistics()
            assert after.worker_restarts == 1
            assert after.worker_pids != before.worker_pids
            assert (await client.health()).ok
            assert "worker restarts: 1" in (await client.health()).reason
            scores = await client.score("Once upon", [" a time", " a"])
            assert scores[0].token_ids


async def test_statistics_are_sums_over_workers(tmp_path: Path) -> None:
    with serving(tmp_path, *ROOM, "--hang-timeout", "0.8") as running:
        async with Client(running.socket) as client, streaming(client, max_tokens=900) as stream:
            (pid,) = (await client.statistics()).worker_pids
            while (counts := await client.statistics()).generated_tokens < 100:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            os.kill(pid, signal.SIGKILL)
            assert await stream == 900
            after = await client.statistics()
            assert after.generated_tokens >= counts.generated_tokens
            assert after.replayed_requests >= 1
            assert after.replayed_tokens > 0
            assert after.completed == 1


async def test_an_idle_worker_that_dies_is_followed_by_another(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        async with Client(running.socket) as client:
            (pid,) = (await client.statistics()).worker_pids
            os.kill(pid, signal.SIGKILL)
            while (await client.statistics()).worker_pids in ((), (pid,)):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert (await client.generate("Once", max_tokens=2)).token_ids


# -- reloads --------------------------------------------------------------------------------


async def test_a_reload_moves_new_calls_and_drains_the_rest(tmp_path: Path) -> None:
    with serving(tmp_path, *ROOM) as running:
        async with Client(running.socket) as client, streaming(client, max_tokens=900) as stream:
            await client.add_prefix("Once upon a time", name="mine")
            (first,) = (await client.statistics()).worker_pids
            os.kill(first, signal.SIGSTOP)  # so that the stream does not end before the rest
            told = await client.reload(n_ctx=4096, system_prompt="You are a poet.")
            assert told["limits"]["n_ctx"] == 4096
            pids = (await client.statistics()).worker_pids
            assert pids[0] == first
            assert len(pids) == 2
            completion = await client.generate("Once", max_tokens=2)
            assert completion.usage.prompt_tokens > 5  # the system prompt comes before it
            assert [info.name for info in await client.prefixes()].count("mine") == 1
            os.kill(first, signal.SIGCONT)
            assert await stream == 900
            while is_running(first):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            assert (await client.statistics()).worker_pids == pids[1:]
            await client.remove_prefix("mine")


async def test_a_reload_that_cannot_be_changes_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        async with Client(running.socket) as client:
            before = (await client.statistics()).worker_pids
            with pytest.raises(ModelFormatError):
                await client.reload(model=str(tmp_path / "none"))
            with pytest.raises(ConfigError, match="n_ctx"):
                await client.reload(n_ctx=3)
            with pytest.raises(ConfigError, match="max_connections"):
                await client.reload(max_connections=3)
            assert (await client.generate("Once", max_tokens=2)).token_ids
            assert (await client.statistics()).worker_pids == before
        log = running.said()
    assert log.count("warning not reloaded, all is as it was") == 3
    assert " error " not in log


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "all"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    done = refused("--socket", str(open_to_all / "p.sock"))
    assert done.returncode == 2
    assert "chmod" in done.stderr


def test_without_uvloop_it_is_the_same(tmp_path: Path) -> None:
    """asyncio's own loop serves where there is no other."""
    tmp_path.chmod(0o700)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "uvloop.py").write_text("raise ImportError('not here')")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "hidden")}
    with serving(tmp_path, env=environ) as running, BlockingClient(running.socket) as client:
        (pid,) = client.statistics().worker_pids
        for process in (pid, running.process.pid):
            assert "uvloop" not in Path(f"/proc/{process}/maps").read_text()
        assert client.generate("Once", max_tokens=3).token_ids
        os.kill(pid, signal.SIGKILL)
        assert client.generate("Once", max_tokens=3).token_ids
