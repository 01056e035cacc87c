"""`WorkerProcess`: start, kill and reap one worker process, without a signal handler."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
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
    """The end of a process.

    status: its exit status, or minus the number of the signal that killed it.
    text: the same in words.
    from_outside: a signal of another process or of the system killed it, and no defect of its own.
    """

    status: int
    text: str
    from_outside: bool = False

    def __str__(self) -> str:
        return self.text


class WorkerProcess:
    """A worker process and the front's end of the socket to it. Made by `spawn`, for one loop.

    pid: the process id; no other process has it before `wait` has returned.
    sock: the front's end, non-blocking. The caller closes it.
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
        """Start `python -m module FD *argv_tail`; FD is the worker's end of the socket.

        Call this on a running loop of the main thread: the worker asks the kernel to kill it when
        its parent ends, and for Linux the parent is the *thread* that spawned it. Blocks until
        the other program runs, about a millisecond. Raises OSError where no process can be
        started.
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
        try:
            return cls(process, ours, loop)
        except BaseException as error:  # there is no thread that could wait for its end
            ours.close()
            process.kill()
            process.wait()
            if isinstance(error, RuntimeError):
                raise OSError(errno.EAGAIN, str(error)) from error
            raise

    def kill(self) -> None:
        """Kill the process now, also if it is stopped. Does nothing if it has ended."""
        if self._process.poll() is None:
            self._was_killed_here = True
            self._process.kill()

    async def wait(self) -> ExitReason:
        """Wait for the process to end and return its `ExitReason`. Several may wait at once."""
        return await asyncio.shield(self._exit)

    def _watch(self) -> None:
        """Have the kernel report the end, by a pidfd, since a SIGCHLD handler would be global."""
        descriptor = _pidfd(self.pid)
        if descriptor is None:
            # A thread of its own, since an executor's thread would be joined when the loop ends.
            reaper = threading.Thread(
                target=self._watch_on_thread, name="pybatcher-reaper", daemon=True
            )
            reaper.start()
        else:
            self._loop.add_reader(descriptor, self._readable, descriptor)

    def _watch_on_thread(self) -> None:
        # Leaves the zombie: if it were reaped, `kill` could hit another process of that pid.
        if sys.platform == "darwin":  # Python has waitid() on macOS since 3.13
            with contextlib.closing(select.kqueue()) as queue:
                end = select.kevent(
                    self.pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT
                )
                queue.control([end], 1)  # returns at once, with an error, if the process has ended
        else:
            with contextlib.suppress(ChildProcessError):  # reaped by now, by `kill`
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        try:
            self._loop.call_soon_threadsafe(self._ended)
        except RuntimeError:  # the loop is closed, so no caller waits
            self._process.wait()

    def _readable(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        self._ended()

    def _ended(self) -> None:
        status = self._process.wait()  # of a zombie: this reaps it and does not block
        killed_here = self._was_killed_here
        from_outside = not killed_here and -status in (signal.SIGKILL, signal.SIGTERM)
        self._exit.set_result(ExitReason(status, _in_words(status, killed_here), from_outside))


def _pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable once the process has ended; None if not available."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not in this Python, or forbidden by a sandbox
        return None


def _start(descriptor: int, module: str, argv_tail: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the program with the front's signals blocked, until it ignores them itself.

    Otherwise a Ctrl-C during its first moments would end it. It inherits the signal mask of this
    thread, which is restored when this returns.
    """
    # These are the flags that multiprocessing passes to its children: -O, -W, -X, -I, ...
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    # Without -P, -m would search the working directory for modules first, unlike this process.
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
    """Return this environment, with sys.path as PYTHONPATH: the worker must import this pybatcher.

    The whole of sys.path in its order, as multiprocessing passes it on, because its first entries
    depend on how this process was started. An isolated interpreter (-I, -E) ignores PYTHONPATH, and
    so did this one: then both find the same modules.
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
        return f"was killed by {name}"
    if was_killed_here:
        return "was killed by SIGKILL (by its front)"
    return "was killed by SIGKILL (by somebody, or by the system for want of memory)"
