"""`WorkerSupervisor`: where one worker serves at a time. When it dies another takes its place.

          died, within intensity
       ┌──────────────────────────┐
       v                          │
opening ──> serving ──────────────┤
   │           │                  └─ past it ──> failed: every call gets the error
   │           └─ retire: drained ──> over
   └─ the model cannot be opened ──> failed
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ...calls.questions import ReadStatistics
from ...calls.statistics import BatcherStatistics, Health
from ...calls.telemetry import Telemetry
from ...errors import ConnectionLostError, EngineFailedError, PybatcherError
from ...serving.supervision import RestartIntensity
from ..protocol.sidecar_statistics import add_counts, no_counts, without_gauges
from ..protocol.wire import statistics_from_wire
from ..replay.link import Link
from ..replay.pending_calls import PendingCalls
from ..replay.remote_service import RemoteService
from .serve_config import ServeConfig
from .watchdog import Watchdog
from .worker_process import ExitReason, WorkerProcess
from .worker_spec import INTERNAL_LIMITS, WorkerSpec

__all__ = ["WorkerSupervisor"]

_LOGGER = logging.getLogger("pybatcher.sidecar")
_TICKS = 8
"""Looks at a worker's heartbeats within `hang_timeout`."""

_BOOT_PATIENCE = 60.0
"""Seconds that a process has for its first heartbeat: starting Python may take long."""

_PREPARE_AFTER = 1.0
"""Seconds of serving after which the next worker is prepared."""

_LAST_BREATH = 0.5
"""Seconds that a worker has to exit when it has hung up."""


class WorkerSupervisor:
    """Keeps a worker running and carries its calls over; for one event loop.

    `run` it as a task. `opened` is done when the first worker serves, with what it says of
    itself; or has the error for which no worker can be had.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        config: ServeConfig,
        *,
        numbers: Iterator[int],
        telemetry: Telemetry,
        module: str = "pybatcher.sidecar.worker",
    ) -> None:
        """numbers: of calls; telemetry: who hears of events. All posts of a front share them.

        module: what a worker process runs.
        """
        self._loop = asyncio.get_running_loop()
        self.spec = replace(spec, beat_period=config.hang_timeout / _TICKS)
        self._config = config
        self._module = module
        self.remote = RemoteService(
            PendingCalls(replays=True, suspects=True, on_work=self._watch, numbers=numbers),
            telemetry,
        )
        self.opened: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._intensity = RestartIntensity(config.max_worker_restarts, config.worker_restart_window)
        self._watchdog = Watchdog(config.hang_timeout, _BOOT_PATIENCE, self.spec.beat_period)
        self._timer: asyncio.TimerHandle | None = None
        self._process: WorkerProcess | None = None
        self._next: WorkerProcess | None = None  # has opened nothing yet
        self._preparing: asyncio.Task[None] | None = None
        self._retiring = False
        self._retirement: asyncio.Task[None] | None = None
        self._loading = ""
        self._last_death = self._why_killed = ""
        self._fingerprint: str | None = None
        self.counts = no_counts()  # of workers that are gone
        self._last_counts = no_counts()  # of the one that serves, as of its last heartbeat
        self.failure: PybatcherError | None = None
        self.restarts = 0

    # -- for the front ----------------------------------------------------------------------

    @property
    def worker_pid(self) -> int | None:
        """Of the worker that there is now."""
        return None if self._process is None else self._process.pid

    async def run(self) -> None:
        """Keep a worker running until retired, or until it dies too often."""
        try:
            while self.failure is None and not self._retiring:
                await self._serve_once()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._preparing is not None:
                self._preparing.cancel()
            if self._process is not None:
                self._process.kill()
            if self._next is not None:
                self._next.kill()
                self._next.sock.close()

    def retire_soon(self) -> None:
        """Let what is in flight end, then the worker. Nothing else is to be submitted here."""
        self._retirement = self._loop.create_task(self._retire(), name="pybatcher-retire")

    async def _retire(self) -> None:
        await self.remote.pending.idle()
        await self.statistics()  # what it has counted is not to go with it
        self.dismiss()

    def dismiss(self) -> None:
        """End the worker now; it is not followed by another."""
        self._retiring = True
        if self._process is not None:
            self._process.kill()

    def hello(self) -> dict[str, Any]:
        """What the worker has said of itself; before that, what it is told to be."""
        if self.opened.done() and self.opened.exception() is None:
            return dict(self.opened.result())
        name = "tiny" if self.spec.model is None else Path(self.spec.model).name
        return {"version": metadata.version("pybatcher"), "model": name, "limits": {}}

    def health(self) -> Health:
        """As of the batcher in the worker."""
        if self.failure is not None:
            return Health("failed", str(self.failure))
        if self.remote.pending.link is not None:
            again = f"; worker restarts: {self.restarts}, the last one after it {self._last_death}"
            return Health("ready", "requests are served" + (again if self.restarts else ""))
        if not self.opened.done():
            return Health("new", f"the model is being opened{self._loading}; requests wait for it")
        return Health(
            "ready", f"the worker {self._last_death}; requests wait for the next{self._loading}"
        )

    async def statistics(self) -> BatcherStatistics:
        """Counts of all workers that there were; what they had counted last, at least."""
        now = None
        if self.remote.pending.link is not None and self.failure is None:
            with suppress(PybatcherError, TimeoutError):  # it may die, or hang, meanwhile
                async with asyncio.timeout(1.0):
                    now = await self.remote.ask(ReadStatistics())
                    self._last_counts = now
        # If it died, what it had counted last is in `counts` by now.
        return add_counts(self.counts, now or without_gauges(self._last_counts))

    # -- one worker -------------------------------------------------------------------------

    async def _serve_once(self) -> None:
        lost: asyncio.Future[ConnectionLostError] = self._loop.create_future()
        began = time.monotonic()
        process = self._process = self._next or WorkerProcess.spawn(module=self._module)
        self._next = None
        link = Link(
            peer=f"worker {process.pid}",
            limits=INTERNAL_LIMITS,
            on_notification=self._take,
            on_lost=lost.set_result,
        )
        self._watchdog.begin()
        self._watch()
        try:
            hello = await self._open(process, link)
        except PybatcherError as error:
            link.close()
            await self._died(await _end_of(process), error)
            return
        _LOGGER.info(
            "worker %d serves %s after %.2f s",
            process.pid,
            hello.get("model"),
            time.monotonic() - began,
            extra={"worker_pid": process.pid, "model": hello.get("model")},
        )
        self._check_same_model(hello)
        if not self.opened.done():
            self.opened.set_result(hello)
        n_waiting = self.remote.pending.n_in_flight
        self.remote.link_made(link)
        if self.restarts and n_waiting:
            _LOGGER.info("%d calls go on", n_waiting, extra={"calls": n_waiting})
        self._preparing = self._loop.create_task(self._prepare())
        gone = await lost
        self._preparing.cancel()
        await self._died(await _end_of(process), gone)

    async def _open(self, process: WorkerProcess, link: Link) -> dict[str, Any]:
        """Have the worker open the model; what it says of itself then."""
        await self._loop.create_connection(lambda: link, sock=process.sock)
        limit = self._config.start_timeout
        try:
            async with asyncio.timeout(limit):
                hello: dict[str, Any] = await link.request("open", [self.spec.to_wire()])
                return hello
        except TimeoutError:
            self._kill(process, f"it has not opened the model within start_timeout = {limit:g} s")
            raise ConnectionLostError("the worker was killed") from None

    def _kill(self, process: WorkerProcess, why: str) -> None:
        self._why_killed = why
        process.kill()

    async def _prepare(self) -> None:
        """Keep a process ready that has all but the model: starting Python takes the longest.

        Not at once: who dies soon is followed by one that opens the model, without company.
        """
        await asyncio.sleep(_PREPARE_AFTER)
        while not self._retiring:
            process = self._next = WorkerProcess.spawn(module=self._module)
            await process.wait()  # somebody killed it: nothing is lost
            self._next = None
            process.sock.close()
            await asyncio.sleep(_PREPARE_AFTER)

    async def _died(self, exit_reason: ExitReason, error: PybatcherError) -> None:
        """Decide what becomes of the calls, and whether there is to be another worker."""
        pid, self._process = self.worker_pid, None
        how = exit_reason.text
        if self._why_killed:
            how, self._why_killed = f"was killed: {self._why_killed}", ""
        self._loading = ""
        self.counts = add_counts(self.counts, without_gauges(self._last_counts))
        self._last_counts = no_counts()
        if self._retiring:
            closed = ConnectionLostError("the worker was dismissed")
            self.remote.link_lost(closed, final=True)
            return
        self._last_death = how
        if not isinstance(error, ConnectionLostError):  # it says itself why it cannot serve
            self._fail(error)
            return
        _LOGGER.warning("worker %s %s", pid, how, extra={"worker_pid": pid, "reason": how})
        if self._intensity.record(self._loop.time()):
            self.restarts += 1
            lost = ConnectionLostError(f"the worker {how}")
            self.remote.link_lost(lost, is_evidence=not exit_reason.from_outside)
            return
        self._fail(
            EngineFailedError(
                f"the worker {how}; that is more than max_worker_restarts = "
                f"{self._config.max_worker_restarts} times in worker_restart_window = "
                f"{self._config.worker_restart_window:g} s"
            )
        )

    def _fail(self, error: PybatcherError) -> None:
        self.failure = error
        _LOGGER.error("no worker can be had: %s", error)
        if not self.opened.done():
            self.opened.set_exception(error)
        self.remote.link_lost(error, final=True)

    def _check_same_model(self, hello: dict[str, Any]) -> None:
        """Replaced files may be another model: then nobody goes on."""
        fingerprint = hello.get("fingerprint")
        if self._fingerprint not in (None, fingerprint):
            _LOGGER.warning("the model's files have changed: calls with tokens cannot go on")
            self.remote.pending.fail_begun(
                EngineFailedError(
                    "the worker died, and the model's files were changed before the next one "
                    "started: the rest of this output would be another model's"
                )
            )
        self._fingerprint = fingerprint

    # -- heartbeats -------------------------------------------------------------------------

    def _take(self, method: str, params: list[Any]) -> None:
        """What the worker tells without being asked."""
        if self.remote.take_notification(method, params):
            return
        if method == "beat":
            busy, progress, counts = params
            self._watchdog.beat(busy, progress)
            self._last_counts = statistics_from_wire(counts)
        elif method == "loading":
            done, total = params
            self._watchdog.beat(False, done)
            self._loading = f" ({done / total:.0%})" if total else ""

    def _watch(self) -> None:
        """Look at the heartbeats as long as the worker owes something."""
        if self._timer is None:
            self._watchdog.reset()
            self._timer = self._loop.call_later(self.spec.beat_period, self._tick)

    def _tick(self) -> None:
        self._timer = None
        process, pending = self._process, self.remote.pending
        if process is None or not (pending.n_in_flight or pending.link is None):
            return
        if (hung := self._watchdog.tick()) is not None:
            self._kill(process, hung)
            self._watchdog.reset()
        self._timer = self._loop.call_later(self.spec.beat_period, self._tick)


async def _end_of(process: WorkerProcess) -> ExitReason:
    """How a worker ended that does not answer any more; it is killed if it is not about to."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_BREATH):
            return await process.wait()
    process.kill()
    return await process.wait()
