"""`Front`: the `CallService` of the sidecar's clients, whichever worker serves them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from functools import partial
from itertools import count
from typing import Any, TypeVar

from typing_extensions import override

from ...calls.call import Call, CallService, Question
from ...calls.questions import Describe, ReadHealth, ReadStatistics, Reload
from ...calls.reply import Reply
from ...calls.statistics import Health
from ...calls.telemetry import Handler, Telemetry
from ...calls.threads.loop_thread import on_own_thread
from ...errors import ConfigError, EngineFailedError, PybatcherError
from ..protocol.sidecar_statistics import SidecarStatistics, no_counts
from ..replay.remote_service import attach_and_watch
from .serve_config import ServeConfig
from .worker_counts import Totals
from .worker_spec import WorkerSpec
from .worker_supervisor import WorkerSupervisor

__all__ = ["Front"]

T = TypeVar("T")
_LOGGER = logging.getLogger("pybatcher.sidecar")


class Front(CallService):
    """Passes calls to the current worker supervisor; a `reload` replaces it.

    `ask` answers questions about the front itself, and passes on the rest.
    n_connections: returns the number of connected clients.
    failed: a future of the reason why no worker can be started any more. A successful `reload`
        replaces it.
    """

    def __init__(
        self, spec: WorkerSpec, config: ServeConfig, n_connections: Callable[[], int]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._config = config
        self._n_connections = n_connections
        self._numbers = count(1)
        self._telemetry = Telemetry(time.monotonic)
        self._reloading = asyncio.Lock()
        self._supervisors: dict[WorkerSupervisor, asyncio.Task[None]] = {}
        self._past = Totals(no_counts())  # totals of supervisors that have ended
        self.failed: asyncio.Future[PybatcherError] = self._loop.create_future()
        self._own_answers: dict[type, Callable[[Any], Awaitable[Any]]] = {
            Describe: self._describe,
            ReadHealth: self._health,
            ReadStatistics: self._statistics,
            Reload: lambda question: self.reload(question.changes),
        }
        self._current = self._start(spec)

    # -- life -------------------------------------------------------------------------------

    @property
    def model_name(self) -> str:
        """The name of the model that new calls go to."""
        return str(self._current.hello().get("model", "unknown"))

    @property
    def n_in_flight(self) -> int:
        """Number of calls that have not ended."""
        return sum(supervisor.remote.pending.n_in_flight for supervisor in self._supervisors)

    async def opened(self) -> dict[str, Any]:
        """Wait until the first worker serves and return its description. Raises its error."""
        return await asyncio.shield(self._current.opened)

    async def close(self, error: PybatcherError) -> None:
        """End all workers; calls in flight get this error."""
        supervisors = dict(self._supervisors)
        for supervisor in supervisors:
            supervisor.remote.pending.fail_all(error)
            supervisor.stop()
        await asyncio.gather(*supervisors.values(), return_exceptions=True)

    async def reload(
        self,
        changes: Mapping[str, Any],
        spec: WorkerSpec | None = None,
        config: ServeConfig | None = None,
    ) -> dict[str, Any]:
        """Open another model, or the same with other options, move new calls there, drain.

        changes: `model`, `system_prompt` and options of the batcher, by name; all others stay
            unchanged.
        spec: the specification to change; None: the current one.
        config: configuration of the new supervisor, and all later ones; None: unchanged.
        There are two workers while the first one is drained. Raises the errors of opening a batcher
        with these changes; then the first worker continues.
        """
        async with self._reloading:
            before, after = self._current, None
            try:
                changed = (spec or before.spec).changed(changes)
                after = self._start(await _found(changed), config)
                hello = await asyncio.shield(after.opened)
            except BaseException as error:
                if after is not None:
                    after.stop()
                why = str(error) or "the caller cancelled it"
                _LOGGER.warning("not reloaded, all is as it was: %s", why)
                raise
            after.remote.take_prefixes_of(before.remote)
            self._current = after
            self._config = config or self._config
            if self.failed.done():
                self.failed = self._loop.create_future()
            _LOGGER.info("reloaded: %s serves from now on", hello.get("model"))
            before.drain_soon()
            return hello

    def _start(self, spec: WorkerSpec, config: ServeConfig | None = None) -> WorkerSupervisor:
        """Start a supervisor, which starts its worker."""
        supervisor = WorkerSupervisor(
            spec, config or self._config, numbers=self._numbers, telemetry=self._telemetry
        )
        task = self._supervisors[supervisor] = self._loop.create_task(
            supervisor.run(), name="pybatcher-supervisor"
        )
        task.add_done_callback(partial(self._supervisor_ended, supervisor))
        return supervisor

    def _supervisor_ended(self, supervisor: WorkerSupervisor, task: asyncio.Task[None]) -> None:
        del self._supervisors[supervisor]
        self._past += supervisor.totals()
        defect = None if task.cancelled() else task.exception()
        failure = supervisor.failure
        if defect is not None:
            _LOGGER.error("a supervisor ended by a defect", exc_info=defect)
            failure = EngineFailedError(f"the front failed: {defect!r}")
            supervisor.remote.pending.fail_all(failure)
            if not supervisor.opened.done():
                supervisor.opened.set_exception(failure)
        if supervisor is self._current and failure is not None and not self.failed.done():
            self.failed.set_result(failure)

    # -- calls ------------------------------------------------------------------------------

    @override
    async def submit(self, call: Call, reply: Reply) -> range:
        return await self._current.remote.submit(call, reply)

    @override
    def cancel(self, request_ids: range) -> None:
        for supervisor in self._supervisors:
            supervisor.remote.cancel(request_ids)

    @override
    async def ask(self, question: Question[T]) -> T:
        own = self._own_answers.get(type(question))
        if own is None:
            return await self._current.remote.ask(question)
        answer: T = await own(question)
        return answer

    async def _describe(self, _: Describe) -> dict[str, Any]:
        """Return the worker's description of itself; before it serves, that of its spec."""
        return self._current.hello()

    async def _health(self, _: ReadHealth) -> Health:
        """Return the health of the supervisor that new calls go to."""
        return self._current.health()

    async def _statistics(self, _: ReadStatistics) -> SidecarStatistics:
        """Return the counts of all workers since the start."""
        await asyncio.gather(*(supervisor.refresh_counts() for supervisor in self._supervisors))
        # Nothing is awaited from here on: all counts are read at one moment, and none twice.
        totals = sum((supervisor.totals() for supervisor in self._supervisors), self._past)
        return SidecarStatistics(
            **asdict(totals.counts),
            worker_restarts=totals.worker_restarts,
            replayed_requests=totals.replayed_requests,
            connections=self._n_connections(),
            in_flight=self.n_in_flight,
            worker_pids=tuple(
                supervisor.worker_pid
                for supervisor in self._supervisors
                if supervisor.worker_pid is not None
            ),
        )

    @override
    def attach(self, handler: Handler) -> Callable[[], None]:
        return attach_and_watch(self._telemetry, handler, self._watch_if_needed)

    def _watch_if_needed(self) -> None:
        for supervisor in self._supervisors:
            supervisor.remote.watch_if_needed()


async def _found(spec: WorkerSpec) -> WorkerSpec:
    """Return `spec.found()`, which may download for a long time. Raises PybatcherError."""
    try:
        return await on_own_thread(spec.found, "pybatcher-find-model")
    except RuntimeError as error:  # the system has no thread now
        raise ConfigError(f"the model cannot be looked up: {error}") from error
