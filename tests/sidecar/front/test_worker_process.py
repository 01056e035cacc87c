"""A worker process: started like us, killed whatever it does, reaped without a signal handler."""

from __future__ import annotations

import asyncio
import calendar
import errno
import importlib.util
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from as_on_macos.kqueue_double import KQUEUE

from pybatcher.sidecar.front.worker_process import ExitReason, WorkerProcess

PATIENCE = 60.0
LOOPS = [
    "asyncio",
    "asyncio without pidfd",
    "asyncio as on macOS",
    *(["uvloop"] * bool(importlib.util.find_spec("uvloop"))),
]
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a coroutine on each kind of loop; no descriptor may be left."""
    factory = None
    if request.param == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    if "without" in request.param:

        def refuse(pid: int, flags: int = 0) -> int:
            raise OSError(errno.ENOSYS, "no such call")

        monkeypatch.setattr(os, "pidfd_open", refuse)
    if "macOS" in request.param:
        monkeypatch.setattr(sys, "platform", "darwin")
        for name, value in KQUEUE.items():
            monkeypatch.setattr(select, name, value, raising=False)

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.sleep(0))  # the first loop of uvloop opens two for the process

    def run_it(coroutine: Coroutine[Any, Any, Any]) -> Any:
        before = descriptors()
        with asyncio.Runner(loop_factory=factory) as runner:
            result = runner.run(asyncio.wait_for(coroutine, PATIENCE))
        assert descriptors() <= before
        return result

    return run_it


def descriptors() -> set[str]:
    names = {f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")}
    return {name for name in names if os.path.lexists(name)}  # all but the listing's own


def spawn(*deed: object) -> WorkerProcess:
    return WorkerProcess.spawn([str(part) for part in deed], module="worker_double")


async def read(worker: WorkerProcess, n_bytes: int = 100_000) -> bytes:
    return await asyncio.get_running_loop().sock_recv(worker.sock, n_bytes)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])


def let_end(pid: int) -> None:
    """Waits until it has ended, and leaves the zombie."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def exists(pid: int) -> bool:
    """Also as a zombie."""
    return Path(f"/proc/{pid}").exists()


async def end_of(*deed: object) -> ExitReason:
    worker = spawn(*deed)
    with worker.sock:
        return await worker.wait()


async def told_by_itself() -> dict[str, Any]:
    worker = spawn("tell")
    with worker.sock:
        said = b""
        while not said.endswith(b"guarded"):
            said += (more := await read(worker))
            assert more, str(await worker.wait())
    assert str(await worker.wait()) == "exited with status 0"
    told: dict[str, Any] = json.loads(said.removesuffix(b"guarded"))
    return told


def test_it_has_the_other_end_and_ends_at_eof(run: Run) -> None:
    async def talk() -> int:
        worker = spawn("echo")
        with worker.sock:
            assert await read(worker) == b"guarded"
            await asyncio.get_running_loop().sock_sendall(worker.sock, b"hello")
            assert await read(worker) == b"hello"
            assert os.getpgid(worker.pid) == os.getpgid(0)
        assert await worker.wait() == ExitReason(0, "exited with status 0")
        return worker.pid

    pid = run(talk())
    with pytest.raises(ChildProcessError):  # no zombie is left
        os.waitpid(pid, os.WNOHANG)


def test_kill_ends_it_also_when_it_is_stopped(run: Run) -> None:
    async def stop_and_kill() -> None:
        worker = spawn("echo")
        with worker.sock:
            await read(worker)
            stop(worker.pid)
            worker.kill()
            assert str(await worker.wait()) == "was killed by SIGKILL (by its front)"
            worker.kill()  # nothing: its number may be somebody else's by now

    run(stop_and_kill())


@pytest.mark.parametrize(
    ("deed", "status", "text"),
    [
        (("exit", 3), 3, "exited with status 3"),
        (("signal", 6), -6, "was killed by SIGABRT"),
        (("signal", 11), -11, "was killed by SIGSEGV"),
        (("signal", 40), -40, "was killed by signal 40"),
        (
            ("signal", 9),
            -9,
            "was killed by SIGKILL (by somebody, or by the system for want of memory)",
        ),
    ],
)
def test_its_end_in_words(
    run: Run, deed: tuple[object, ...], status: int, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from_outside = deed == ("signal", 9)
    assert run(end_of(*deed)) == ExitReason(status, text, from_outside)
    is_crash = deed in {("signal", 6), ("signal", 11)}
    assert ("Fatal Python error" in capfd.readouterr().err) == is_crash


def test_a_kill_that_comes_too_late_is_not_the_cause(run: Run) -> None:
    async def late() -> str:
        worker = spawn("signal", 9)
        with worker.sock:
            let_end(worker.pid)
        worker.kill()
        return str(await worker.wait())

    assert "by somebody" in run(late())


def test_several_wait_and_one_may_give_up(run: Run) -> None:
    async def wait_thrice() -> None:
        worker = spawn("echo")
        with worker.sock:
            one, other = (asyncio.create_task(worker.wait()) for _ in range(2))
            await read(worker)
            one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await one
            worker.kill()
            assert (await other).status == -9
            assert (await worker.wait()).status == -9

    run(wait_thrice())


def test_nobody_has_to_wait_for_it_to_be_reaped(run: Run) -> None:
    async def leave() -> None:
        worker = spawn("exit", 0)
        with worker.sock:
            while exists(worker.pid):  # noqa: ASYNC110  # it sets no event when it is reaped
                await asyncio.sleep(0.01)

    run(leave())


def test_signals_for_all_do_not_end_one_that_is_starting(run: Run) -> None:
    async def start_under_fire() -> None:
        worker = spawn("late")
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()).intersection(numbers)
        with worker.sock:
            for number in numbers:
                os.kill(worker.pid, number)
            assert await read(worker) == b"unguarded"
            for number in numbers:
                os.kill(worker.pid, number)
            await asyncio.get_running_loop().sock_sendall(worker.sock, b"!")
            assert await read(worker) == b"guarded"
            for number in numbers:
                os.kill(worker.pid, number)
            await asyncio.get_running_loop().sock_sendall(worker.sock, b"still there")
            assert await read(worker) == b"still there"
        assert (await worker.wait()).status == 0

    run(start_under_fire())


def test_it_imports_what_we_import(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also from where we stand: a file there must not pass for a module of the library."""
    (tmp_path / "calendar.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "warnoptions", ["error::BytesWarning"])
    monkeypatch.setattr(sys, "path", [*sys.path, "elsewhere", str(tmp_path / "a:b")])
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    told = run(told_by_itself())
    existing = [path for path in sys.path if os.path.exists(path)]
    assert [path for path in told["path"] if path in existing] == list(dict.fromkeys(existing))
    assert str(tmp_path / "elsewhere") in told["path"]
    assert "/nowhere" not in told["path"]
    assert not any(path.startswith(str(tmp_path / "a")) for path in told["path"])
    assert told["warnoptions"] == ["error::BytesWarning"]
    assert told["calendar"] == calendar.__file__


def test_it_inherits_nothing_else(run: Run) -> None:
    ours, other = os.pipe()
    os.write(other, b"typed")
    os.set_inheritable(ours, True)
    stdin = os.dup(0)
    os.dup2(ours, 0)
    try:
        told = run(told_by_itself())
    finally:
        os.dup2(stdin, 0)
        for descriptor in (ours, other, stdin):
            os.close(descriptor)
    # 0 to 2, its end of the socket, and the listing itself.
    assert len(told["descriptors"]) == 5
    assert ours not in told["descriptors"]
    assert told["stdin"] == ""
    assert told["blocked"] == []


def test_no_signal_handler_and_no_variable_of_ours_is_left(run: Run) -> None:
    before = (signal.getsignal(signal.SIGCHLD), dict(os.environ))
    told = run(told_by_itself())
    assert (signal.getsignal(signal.SIGCHLD), dict(os.environ)) == before
    assert not [name for name in told["environment"] if name.startswith("PYBATCHER")]


def test_what_cannot_be_started_leaves_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        with pytest.raises(FileNotFoundError):
            spawn("echo")

    run(fail())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_it_wants_a_running_loop() -> None:
    before = descriptors()
    with pytest.raises(RuntimeError, match="no running event loop"):
        spawn("echo")
    assert descriptors() <= before


def test_a_loop_that_is_gone_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reaper thread of a front that gave up waiting says nothing."""

    async def leave() -> WorkerProcess:
        return spawn("exit", 0)

    monkeypatch.delattr(os, "pidfd_open")
    with asyncio.Runner() as runner:
        worker = runner.run(leave())
    worker.sock.close()
    deadline = time.monotonic() + PATIENCE
    while exists(worker.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
