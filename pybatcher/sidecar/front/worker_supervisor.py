"""`WorkerSupervisor`: keeps one worker process running. When it ends another takes its place.

          ended, within intensity, or by requests
       ┌──────────────────────────┐
       v                          │
opening ──> serving ──────────────┤
 │ ^ │         │                  └─ past it ──> failed: every call gets the error
 │ └─┤         └─ drain_soon: no call is left ──> stopped
 │   └─ cannot be started again for now: tries back off, up to the window of the intensity
 └─ the model cannot be opened at first, or for longer ──> failed

A request that crashes workers, or takes all memory, is searched for (replay/poison.py) and fails
alone. Such deaths have an intensity of their own: past it the search begins with all calls in
flight, and the supervisor goes on.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...calls.statistics import Health
from ...calls.telemetry import Telemetry
from ...errors import ConnectionLostError, EngineFailedError, ProtocolError, PybatcherError
from ...errors.distribution import version
from ...models.hub import name_of
from ...serving.supervision import RestartIntensity
from ..protocol.wire import statistics_from_wire
from ..replay.link import Link
from ..replay.pending_calls import PendingCalls
from ..replay.remote_service import RemoteService
from .descriptors import SpareDescriptors
from .oom_kills import OomKills
from .serve_config import ServeConfig
from .watchdog import Watchdog
from .worker_counts import Totals, WorkerCounts
from .worker_process import ExitReason, WorkerProcess
from .worker_spec import INTERNAL_LIMITS, WorkerSpec

__all__ = ["WorkerSupervisor"]

_LOGGER = logging.getLogger("pybatcher.sidecar")
_TICKS = 8
"""Checks of a worker's heartbeats within `hang_timeout`."""

_BOOT_TIMEOUT = 60.0
"""Seconds that a process has for its first heartbeat: starting Python may take long."""

_STANDBY_DELAY = 1.0
"""Seconds of serving after which the next process is started."""

_SPAWN_PAUSE = 1.0
"""Seconds until the first process is started again after the system had no room for one."""

_START_PAUSE = 0.25
"""Seconds until a worker that could not be started is started again; twice as many each time."""

_EXIT_GRACE = 0.5
"""Seconds that a worker has to exit after it has closed its end of the socket."""

_COUNTS_TIMEOUT = 1.0
"""Seconds that a worker has to report its counts. After them, its last report is used."""

_COUNTS_PAUSE = 0.01
"""Seconds between two queries of the counts of a worker that is to be stopped."""


class WorkerSupervisor:
    """Keeps a worker running and carries its calls over to the next. For one event loop.

    Run `run` as a task. opened: a future of the first worker's description of itself, set when it
        serves, or of the error that keeps it from serving.
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
        """Start nothing yet.

        numbers: the ids of calls. telemetry: has the handlers of events. All supervisors of a front
            share both.
        module: the Python module that a worker process runs.
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
        self._intensity_of_requests = RestartIntensity(
            config.max_worker_restarts, config.worker_restart_window
        )
        self._n_failed_starts = 0
        self._failing_since = 0.0
        self._watchdog = Watchdog(config.hang_timeout, _BOOT_TIMEOUT, self.spec.beat_period)
        self._timer: asyncio.TimerHandle | None = None
        self._process: WorkerProcess | None = None
        self._standby: WorkerProcess | None = None  # it has opened no model yet
        self._preparing: asyncio.Task[None] | None = None
        self._spare = SpareDescriptors()
        self._oom_kills = OomKills()
        self._is_stopping = False
        self._stopped = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None
        self._loading = ""
        self._last_end = self._why_killed = ""
        self._fingerprint: str | None = None
        self._counts = WorkerCounts()
        self.failure: PybatcherError | None = None
        self.restarts = 0

    # -- for the front ----------------------------------------------------------------------

    @property
    def worker_pid(self) -> int | None:
        """Process id of the running worker; None without one, or after it was told to end."""
        return None if self._process is None or self._is_stopping else self._process.pid

    async def run(self) -> None:
        """Keep a worker running until stopped, or until workers end too often."""
        try:
            while self.failure is None and not self._is_stopping:
                await self._serve_once()
        finally:
            self._counts.worker_ended()
            if self._timer is not None:
                self._timer.cancel()
            if self._preparing is not None:
                self._preparing.cancel()
            left = [one for one in (self._process, self._standby) if one is not None]
            for process in left:
                process.kill()
            if self._standby is not None:
                self._standby.sock.close()
            for process in left:  # no process is left when this returns
                await process.wait()
            self._spare.close()

    def drain_soon(self) -> None:
        """Stop the worker when no call is in flight. Nothing else may be submitted here."""
        self._draining = self._loop.create_task(self._drain(), name="pybatcher-drain")

    async def _drain(self) -> None:
        pending = self.remote.pending
        while True:
            await pending.idle()
            await self._last_counts()
            if not pending.n_in_flight:  # a chat is submitted after its tokenize question ended
                break
        self.stop()

    async def _last_counts(self) -> None:
        """Wait until the worker has counted the calls that were cancelled here."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_COUNTS_TIMEOUT):
                await self.refresh_counts()
                while not self._counts.is_idle:
                    await asyncio.sleep(_COUNTS_PAUSE)
                    await self.refresh_counts()

    def stop(self) -> None:
        """Kill the worker now. No other follows it; calls in flight get ConnectionLostError."""
        self._is_stopping = True
        self._stopped.set()
        if self._process is not None:
            self._process.kill()

    def hello(self) -> dict[str, Any]:
        """Return the worker's description of itself; before it serves, that of its spec."""
        if self.opened.done() and self.opened.exception() is None:
            return dict(self.opened.result())
        name = "tiny" if self.spec.model is None else name_of(Path(self.spec.model))
        return {"version": version(), "model": name, "limits": {}}

    def health(self) -> Health:
        """Return the health of the batcher in the worker, from its reports."""
        if self.failure is not None:
            return Health("failed", str(self.failure))
        if self.remote.pending.link is not None:
            again = f"; worker restarts: {self.restarts}, the last one after it {self._last_end}"
            return Health("ready", "requests are served" + (again if self.restarts else ""))
        if not self.opened.done():
            return Health("new", f"the model is being opened{self._loading}; requests wait for it")
        return Health(
            "ready", f"the worker {self._last_end}; requests wait for the next{self._loading}"
        )

    async def refresh_counts(self) -> None:
        """Have the worker report its counts, for `totals`. Raises nothing.

        Returns when they have arrived, or when the worker has not answered in time. The question is
        sent over the link itself and not by the `RemoteService`: it must not be sent again to the
        next worker, nor keep a worker that is drained from ending.
        """
        link = self.remote.pending.link
        if link is None:
            return
        answered: asyncio.Future[None] = self._loop.create_future()

        def take(error: PybatcherError | None, result: Any) -> None:
            if error is None:
                with suppress(ProtocolError):
                    self._counts.report(statistics_from_wire(result))
            if not answered.done():
                answered.set_result(None)

        with suppress(ConnectionLostError, TimeoutError):
            link.start_call("statistics", [], take)
            async with asyncio.timeout(_COUNTS_TIMEOUT):
                await answered

    def totals(self) -> Totals:
        """Return the counts of all workers since the start, as of their last reports."""
        replayed = self.remote.pending.replayed_requests
        return Totals(self._counts.total(), self.restarts, replayed)

    # -- one worker -------------------------------------------------------------------------

    async def _serve_once(self) -> None:
        lost: asyncio.Future[ConnectionLostError] = self._loop.create_future()
        began = time.monotonic()
        try:
            process = self._process = self._standby or self._spawn()
        except OSError as error:  # the system has no room for a process now
            why = ExitReason(1, f"could not be started: {error}", from_outside=True)
            if not self.opened.done():
                await self._pause(_SPAWN_PAUSE)
            await self._not_started(why, ConnectionLostError("there is no worker"))
            return
        self._standby = None
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
            await self._not_started(await _exit_of(process), error)
            return
        self._n_failed_starts = 0
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
        await self._worker_ended(await _exit_of(process), gone)

    async def _open(self, process: WorkerProcess, link: Link) -> dict[str, Any]:
        """Have the worker open the model. Return its description of itself."""
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
        """Keep a standby process that has imported everything but the model, the longest part of a
        start.

        It is not started at once: after a worker that ends soon, the next one opens the model
            undisturbed.
        """
        await asyncio.sleep(_STANDBY_DELAY)
        while not self._is_stopping:
            with suppress(OSError):  # the system has no room for a process now
                process = self._standby = self._spawn()
                await process.wait()  # it was killed from outside; it had no calls
                self._oom_kills.rose()
                self._standby = None
                process.sock.close()
            await asyncio.sleep(_STANDBY_DELAY)

    def _spawn(self) -> WorkerProcess:
        tail = (self._config.log_format, self._config.log_level)
        with self._spare.lent():
            return WorkerProcess.spawn(tail, module=self._module)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not after `stop`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()

    async def _not_started(self, exit_reason: ExitReason, error: PybatcherError) -> None:
        """Process the end of a worker that has not served.

        After a worker that has served, this is no death: the system may lack a thread, a descriptor
        or a readable file for a moment. It is tried again, with pauses that grow, until the tries
        have failed for `worker_restart_window` seconds.
        """
        now, window = self._loop.time(), self._config.worker_restart_window
        if not self._n_failed_starts:
            self._failing_since = now
        is_over = now - self._failing_since >= window
        if self._is_stopping or not self.opened.done() or is_over:
            await self._worker_ended(exit_reason, error, may_follow=not is_over)
            return
        is_told = not isinstance(error, ConnectionLostError)
        how = f"could not be started: {error}" if is_told else self._how_ended(exit_reason)
        self._why_killed = self._loading = ""
        pid, self._process = self.worker_pid, None
        self._oom_kills.rose()
        longest = window / max(self._config.max_worker_restarts, 1)
        pause = min(_START_PAUSE * 2.0**self._n_failed_starts, longest)
        self._n_failed_starts += 1
        self._last_end = how
        _LOGGER.warning(
            "worker %s %s; it is tried again in %.2f s",
            pid or "process",
            how,
            pause,
            extra={"worker_pid": pid, "reason": how},
        )
        lost = ConnectionLostError(f"the worker {how}")
        self.remote.link_lost(lost, is_evidence=False)
        await self._pause(pause)

    def _how_ended(self, exit_reason: ExitReason) -> str:
        return f"was killed: {self._why_killed}" if self._why_killed else exit_reason.text

    async def _worker_ended(
        self, exit_reason: ExitReason, error: PybatcherError, *, may_follow: bool = True
    ) -> None:
        """Keep the calls for the next worker, or fail them if none follows.

        may_follow: False if none may, whatever the intensity is.
        """
        pid, self._process = self.worker_pid, None
        how, self._why_killed = self._how_ended(exit_reason), ""
        for_memory: bool | None = False
        if exit_reason.from_outside and exit_reason.status == -signal.SIGKILL:
            for_memory = self._oom_kills.rose()
            if for_memory:
                how = "was killed by SIGKILL (by the system for lack of memory)"
        self._loading = ""
        self._counts.worker_ended()
        if self._is_stopping:
            stopped = ConnectionLostError("the worker was stopped")
            self.remote.link_lost(stopped, final=True)
            return
        self._last_end = how
        # the worker has reported why it cannot serve
        if not isinstance(error, ConnectionLostError):
            self._fail(error)
            return
        _LOGGER.warning(
            "worker %s %s", pid or "process", how, extra={"worker_pid": pid, "reason": how}
        )
        by_requests = bool(for_memory) or (
            self.remote.pending.n_cut > 0 and not exit_reason.from_outside
        )
        intensity = self._intensity_of_requests if by_requests else self._intensity
        is_within = intensity.record(self._loop.time())
        may_exceed = by_requests and self._config.max_worker_restarts > 0
        if may_follow and (is_within or may_exceed):
            self.restarts += 1
            lost = ConnectionLostError(f"the worker {how}")
            if self.remote.link_lost(
                lost,
                # whether an unexplained SIGKILL was for lack of memory is not known everywhere
                is_evidence=not exit_reason.from_outside or for_memory is not False,
                with_tokens=bool(for_memory) or not is_within,
            ):
                intensity.forget()
            return
        at_most = (
            f"{self._config.max_worker_restarts} times in worker_restart_window = "
            f"{self._config.worker_restart_window:g} s"
        )
        more = "that is more than" if may_follow else "no other could be started, within"
        self._fail(EngineFailedError(f"the worker {how}; {more} max_worker_restarts = {at_most}"))

    def _fail(self, error: PybatcherError) -> None:
        """Give every call this error, now and later."""
        self.failure = error
        if self.opened.done():
            _LOGGER.error("no worker can be had: %s", error)
        else:
            self.opened.set_exception(error)  # the task that awaits it reports the error
        self.remote.link_lost(error, final=True)

    def _check_same_model(self, hello: dict[str, Any]) -> None:
        """Fail the calls that have tokens if the files are of another model than before."""
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
        """Process a notification of the worker."""
        if self.remote.take_notification(method, params):
            return
        if method == "beat":
            busy, progress, counts = params
            self._watchdog.beat(busy, progress)
            self._counts.report(statistics_from_wire(counts))
            self._spare.refill()
        elif method == "loading":
            done, total = params
            self._watchdog.beat(False, done)
            self._loading = f" ({done / total:.0%})" if total else ""

    def _watch(self) -> None:
        """Check the heartbeats as long as a call is in flight or the worker is opening."""
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


async def _exit_of(process: WorkerProcess) -> ExitReason:
    """Wait for a worker that has closed its end to exit; kill it if it does not."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_EXIT_GRACE):
            return await process.wait()
    process.kill()
    return await process.wait()
