"""`WorkerProcess`: start, kill and reap one worker process, without a signal handler."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from .guard import FRONT_SIGNALS, PARENT_VARIABLE

__all__ = ["ExitReason", "WorkerProcess"]


@dataclass(frozen=True, slots=True)
class ExitReason:
    """How a process ended.

    status: its exit status, or minus the number of the signal that killed it.
    text: that, for people.
    from_outside: somebody killed it, or the system did, and not a defect of its own.
    """

    status: int
    text: str
    from_outside: bool = False

    def __str__(self) -> str:
        return self.text


class WorkerProcess:
    """A worker and our end of the socket to it. Made by `spawn`, used on the loop it was made on.

    pid: of the process; nobody else's before `wait` has returned.
    sock: our end, non-blocking. Whoever takes it closes it.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.pid = process.pid
        self.sock = sock
        self._process = process
        self._was_killed_here = False
        self._loop = loop
        self._exit: asyncio.Future[ExitReason] = loop.create_future()
        self._watch()

    @classmethod
    def spawn(
        cls, argv_tail: Sequence[str] = (), *, module: str = "pybatcher.sidecar.worker"
    ) -> WorkerProcess:
        """Start `python -m module FD *argv_tail`, FD being its end of the socket.

        To be called on a running loop of the main thread: the worker asks to
        be killed when its parent ends, and Linux takes that to be the *thread*
        that spawned it. Raises OSError where no process can be started. Blocks
        until the other program runs, about a millisecond.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            try:
                process = _start(theirs.fileno(), module, argv_tail)
            except BaseException:
                ours.close()
                raise
        return cls(process, ours, loop)

    def kill(self) -> None:
        """End it now, whatever it does, also if it is stopped. Nothing if it has ended."""
        if self._process.poll() is None:
            self._was_killed_here = True
            self._process.kill()

    async def wait(self) -> ExitReason:
        """How it ended, when it has. Any number may wait, and each give up for itself."""
        return await asyncio.shield(self._exit)

    def _watch(self) -> None:
        """Hear of the end from the kernel: SIGCHLD is the process's, and nothing here is global."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not in this Python, or forbidden by a sandbox
            # A thread of its own: an executor's would be joined when the loop ends.
            reaper = threading.Thread(
                target=self._watch_on_thread, name="pybatcher-reaper", daemon=True
            )
            reaper.start()
        else:
            self._loop.add_reader(descriptor, self._readable, descriptor)

    def _watch_on_thread(self) -> None:
        with contextlib.suppress(ChildProcessError):  # reaped by now, by `kill`
            # Leaves the zombie: if it were reaped here, `kill` could hit who has its number then.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        try:
            self._loop.call_soon_threadsafe(self._ended)
        except RuntimeError:  # the loop is closed: nobody waits, or kills
            self._process.wait()

    def _readable(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        self._ended()

    def _ended(self) -> None:
        status = self._process.wait()  # a zombie: this reaps it and does not block
        killed_here = self._was_killed_here
        from_outside = not killed_here and -status in (signal.SIGKILL, signal.SIGTERM)
        self._exit.set_result(ExitReason(status, _in_words(status, killed_here), from_outside))


def _start(descriptor: int, module: str, argv_tail: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the other program with signals that mean the front blocked, until it ignores them.

    Else a Ctrl-C during its first moments would end it. It inherits the mask of
    this thread, which is as before when this returns.
    """
    # As multiprocessing hands on to what it spawns: -O, -W, -X, -I, ... of this interpreter.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    # -P: else -m would look for modules in the working directory first, where we did not.
    command = [sys.executable, *flags, "-P", "-m", module, str(descriptor), *argv_tail]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FRONT_SIGNALS)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            close_fds=True,
            pass_fds=(descriptor,),
            env=_environment(),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment() -> dict[str, str]:
    """Ours, and the paths that we import from: of two pybatchers it must find the same.

    The whole of sys.path in its order, as multiprocessing hands it on, because
    its first entries come from how this process was started. An isolated
    interpreter (-I, -E) ignores it, and then finds what we found: so did we.
    """
    paths = [os.path.abspath(path) for path in sys.path]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in paths if os.pathsep not in path),
        PARENT_VARIABLE: str(os.getpid()),
    }


def _in_words(status: int, was_killed_here: bool) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal
        name = f"signal {-status}"
    if -status != signal.SIGKILL:
        return f"killed by {name}"
    if was_killed_here:
        return "killed by SIGKILL (by its front)"
    return "killed by SIGKILL (by somebody, or by the system for want of memory)"
