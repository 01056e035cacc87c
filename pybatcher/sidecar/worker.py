"""The worker process: one `Batcher` that serves the front at the other end of a socket.

    python -m pybatcher.sidecar.worker FD

It is started by `WorkerProcess.spawn`, does what the first request (`open`) says, beats while
there is work, and ends when the front hangs up. Where the batcher has failed for good or hangs it
ends too, before its callers hear of it: for them the front starts another.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from importlib import import_module
from typing import Any, NoReturn

from ..batcher import Batcher
from ..errors import PybatcherError
from .front.guard import guard_child
from .front.loops import run
from .front.worker_spec import INTERNAL_LIMITS, WorkerSpec
from .protocol.wire import statistics_to_wire
from .session.service import BatcherService
from .session.session import ServerSession

__all__ = ["main"]

_BATCHER_FAILED = 70  # exit status, EX_SOFTWARE


class _OpenedLater(BatcherService):
    """Of use once the front has said what to open; it asks for nothing else before."""

    def __init__(self) -> None:
        pass

    def open(self, batcher: Batcher) -> None:
        """Serve from this one."""
        super().__init__(batcher)


class Worker:
    """What the process serves, from the first request on."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._batcher: Batcher | None = None
        self._backing = _OpenedLater()
        self._beat_period = 1.0
        self._loading = (0, 0)

    async def run(self) -> None:
        """Serve until the front hangs up."""
        self._session = ServerSession(
            self._backing,
            limits=INTERNAL_LIMITS,
            on_end=lambda _: self._ended.set(),
            methods={"open": self._open},
        )
        await self._loop.create_connection(lambda: self._session, sock=self._sock)
        self._beat()
        await self._ended.wait()

    async def _open(self, params: list[Any]) -> dict[str, Any]:
        spec = WorkerSpec.from_wire(params[0])
        self._beat_period = spec.beat_period
        batcher = Batcher(
            spec.model,
            system_prompt=spec.system_prompt,
            progress=self._note_loading,
            on_failure=_give_up,
            **spec.options,
        )
        await batcher.start()
        self._batcher = batcher
        self._backing.open(batcher)
        return {
            **await self._backing.hello(),
            "fingerprint": batcher.runtime.fingerprint,
            "pid": os.getpid(),
        }

    def _note_loading(self, done: int, total: int) -> None:
        """On the thread that loads."""
        self._loading = (done, total)

    def _beat(self) -> None:
        """Say that the process lives, and how far the engine has come."""
        if self._batcher is None:
            self._session.notify("loading", list(self._loading))
        elif self._session.n_in_flight:
            busy, progress = (
                True,
                len(self._batcher.statistics().__repr__()) + self._batcher.statistics().steps,
            )
            counts = statistics_to_wire(self._batcher.statistics())
            self._session.notify("beat", [busy, progress, counts])
        self._loop.call_later(self._beat_period, self._beat)


def _give_up(error: PybatcherError) -> NoReturn:
    print(f"pybatcher worker {os.getpid()}: {error}", file=sys.stderr, flush=True)
    os._exit(_BATCHER_FAILED)


async def _serve(descriptor: int) -> None:
    await Worker(socket.socket(fileno=descriptor)).run()
    os._exit(0)  # nobody is left to hear of anything, and a step may be under way


def main() -> None:
    """What `python -m` runs."""
    guard_child()
    import_module("pybatcher.engine")  # now, while nobody waits for it
    run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
