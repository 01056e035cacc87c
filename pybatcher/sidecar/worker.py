"""The worker process: one `Batcher` that serves the front at the other end of a socket.

    python -m pybatcher.sidecar.worker FD

`WorkerProcess.spawn` starts it. It opens what the first request (`open`) names, sends heartbeats
while there is work, and exits when the front closes the connection. Where the batcher has failed
for good or hangs it exits too, before callers are told: the front starts another for them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from importlib import import_module
from typing import Any, NoReturn

from ..batcher import Batcher
from ..calls.statistics import BatcherStatistics
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
    """A service without a batcher until `open`. The front asks for nothing before."""

    def __init__(self) -> None:
        pass

    def open(self, batcher: Batcher) -> None:
        """Serve from this batcher."""
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
        self._reported: BatcherStatistics | None = None

    async def run(self) -> None:
        """Serve until the front closes the connection."""
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
        self._beat_timer.cancel()  # it has another period, which may be longer than a hang
        self._beat()
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
        """Note how many of how many bytes are loaded. Called on the thread that loads."""
        self._loading = (done, total)

    def _beat(self) -> None:
        """Send a heartbeat: whether the engine has a job, how far it has come, and all counts.

        Sent from the event loop, so that a loop that is stuck is silent. A prompt that is being
        tokenised is no job of the engine: that may take any time, and is no hang. Without a
        request and with nothing new to report, nothing is sent.
        """
        if self._batcher is None:
            self._session.notify("loading", list(self._loading))
        else:
            counts = self._batcher.statistics()
            if self._session.n_in_flight or counts != self._reported:
                busy, progress = self._batcher._running_service().heartbeat()
                self._session.notify("beat", [busy, progress, statistics_to_wire(counts)])
                self._reported = counts
        self._beat_timer = self._loop.call_later(self._beat_period, self._beat)


def _give_up(error: PybatcherError) -> NoReturn:
    """Exit at once: for the callers the front starts another worker."""
    print(f"pybatcher worker {os.getpid()}: {error}", file=sys.stderr, flush=True)
    os._exit(_BATCHER_FAILED)


async def _serve(descriptor: int) -> None:
    await Worker(socket.socket(fileno=descriptor)).run()
    os._exit(0)  # the front is gone, and a step may be under way


def main() -> None:
    """What `python -m` runs."""
    guard_child()
    import_module("pybatcher.engine")  # now, and not while a caller waits
    run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
