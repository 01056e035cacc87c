"""The worker process: one `Batcher` that serves the front at the other end of a socket.

    python -m pybatcher.sidecar.worker FD LOG_FORMAT LOG_LEVEL

`WorkerProcess.spawn` starts it. It opens the model that the first request (`open`) names, sends
heartbeats while there is work, and exits when the front closes the connection. It also exits when
the batcher has failed for good or hangs, before callers get an error: the front starts another
worker for their calls.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any, NoReturn, TypeVar

from typing_extensions import override

from ..batcher import Batcher
from ..calls.call import Call, CallService, Question
from ..calls.questions import Describe, Tokenize
from ..calls.reply import Reply
from ..calls.statistics import BatcherStatistics
from ..calls.telemetry import Handler
from ..errors import BatcherClosedError, PybatcherError
from .front.guard import guard_child
from .front.logs import set_up_logs
from .front.loops import run
from .front.oom_kills import prefer_to_front
from .front.worker_spec import INTERNAL_LIMITS, WorkerSpec
from .protocol.wire import statistics_to_wire
from .protocol.wire_images import unpacked
from .session.session import ServerSession

__all__ = ["main"]

T = TypeVar("T")
_LOGGER = logging.getLogger("pybatcher.sidecar")

_BATCHER_FAILED = 70  # exit status, EX_SOFTWARE


class _OpenedLater(CallService):
    """The service of a batcher that is opened by the first request.

    The front sends no calls before that.
    """

    def __init__(self) -> None:
        self._service: CallService | None = None

    def open(self, service: CallService) -> None:
        """Serve all calls with `service` from now on."""
        self._service = service

    @override
    async def submit(self, call: Call, reply: Reply) -> range:
        if call.chat is not None:
            call = replace(call, content=unpacked(call.content))
        return await self._opened().submit(call, reply)

    @override
    def cancel(self, request_ids: range) -> None:
        self._opened().cancel(request_ids)

    @override
    async def ask(self, question: Question[T]) -> T:
        if isinstance(question, Tokenize) and question.chat is not None:
            plain: Any = replace(question, content=unpacked(question.content))
            question = plain
        return await self._opened().ask(question)

    @override
    def attach(self, handler: Handler) -> Callable[[], None]:
        return self._opened().attach(handler)

    def _opened(self) -> CallService:
        if self._service is None:
            raise BatcherClosedError("the worker has opened no model yet; send `open` first")
        return self._service


class Worker:
    """The session with the front, the batcher, and its heartbeats."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._batcher: Batcher | None = None
        self._service = _OpenedLater()
        self._beat_period = 1.0
        self._loading = (0, 0)
        self._reported: BatcherStatistics | None = None

    async def run(self) -> None:
        """Serve until the front closes the connection."""
        self._session = ServerSession(
            self._service,
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
        # before `open`, the timer's period may be longer than the hang timeout
        self._beat_timer.cancel()
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
        self._service.open(batcher._running_service())
        description: dict[str, Any] = await self._service.ask(Describe())
        return {
            **description,
            "fingerprint": batcher.runtime.fingerprint,
            "pid": os.getpid(),
        }

    def _note_loading(self, done: int, total: int) -> None:
        """Record how many of the bytes are loaded. Called on the thread that loads."""
        self._loading = (done, total)

    def _beat(self) -> None:
        """Send a heartbeat: whether the engine has a job, its progress, and all counts.

        Sent from the event loop, so that a loop that is stuck sends none. Tokenizing a prompt is no
        job of the engine: it may take any time, and is no hang. Without a request in flight and
        without new counts, nothing is sent.
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
    """Exit the process at once. The front starts another worker for the calls in flight."""
    try:
        _LOGGER.critical("worker %d: %s", os.getpid(), error)
    finally:  # also if the log cannot be written
        os._exit(_BATCHER_FAILED)


async def _serve(descriptor: int) -> None:
    await Worker(socket.socket(fileno=descriptor)).run()
    os._exit(0)  # the front has closed the connection, and a step may be under way


def main() -> None:
    """Run the worker: the entry point of `python -m`."""
    guard_child()
    prefer_to_front()
    set_up_logs(sys.argv[2], sys.argv[3])
    import_module("pybatcher.engine")  # now, so that no caller waits for the import
    run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
