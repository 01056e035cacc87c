"""`Front`: what the sidecar's clients talk to, whichever worker serves them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from itertools import count
from typing import Any

from ...calls.call import Call, CallOptions
from ...calls.inquiry import Embedding, Score
from ...calls.prefix_info import PrefixInfo
from ...calls.statistics import Health
from ...calls.stream import Reply
from ...calls.telemetry import Handler, Telemetry
from ...errors import EngineFailedError, PybatcherError
from ..protocol.sidecar_statistics import SidecarStatistics, no_counts
from ..replay.remote_service import attach_and_watch
from ..session.service import SidecarService
from .serve_config import ServeConfig
from .worker_counts import Totals
from .worker_spec import WorkerSpec
from .worker_supervisor import WorkerSupervisor

__all__ = ["Front"]

_LOGGER = logging.getLogger("pybatcher.sidecar")


class Front(SidecarService):
    """Hands calls to the current supervisor; after a `reload` that is another one.

    n_connections: how many clients there are.
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
        self._past = Totals(no_counts())  # of supervisors that are no more
        self.failed: asyncio.Future[PybatcherError] = self._loop.create_future()
        self._current = self._start(spec)

    # -- life -------------------------------------------------------------------------------

    @property
    def n_in_flight(self) -> int:
        """Calls without an end."""
        return sum(supervisor.remote.pending.n_in_flight for supervisor in self._supervisors)

    async def opened(self) -> dict[str, Any]:
        """Wait for the first worker to serve. Raises why it cannot."""
        return await asyncio.shield(self._current.opened)

    async def close(self, error: PybatcherError) -> None:
        """End all workers; calls in flight get this error."""
        supervisors = dict(self._supervisors)
        for supervisor in supervisors:
            supervisor.remote.pending.fail_all(error)
            supervisor.stop()
        await asyncio.gather(*supervisors.values(), return_exceptions=True)

    async def reload(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Open another model, or the same with other options, move new calls there, drain.

        changes: `model`, `system_prompt` and options of the batcher, by name; what is not named
        stays as it is. While the first worker is drained there are two. Raises what is wrong with
        them, or with the model, and then everything is as before.
        """
        async with self._reloading:
            before, after = self._current, None
            try:
                after = self._start(before.spec.changed(changes))
                hello = await asyncio.shield(after.opened)
            except BaseException as error:
                if after is not None:
                    after.stop()
                why = str(error) or "the caller cancelled it"
                _LOGGER.warning("not reloaded, all is as it was: %s", why)
                raise
            after.remote.take_prefixes_of(before.remote)
            self._current = after
            _LOGGER.info("reloaded: %s serves from now on", hello.get("model"))
            before.drain_soon()
            return hello

    def _start(self, spec: WorkerSpec) -> WorkerSupervisor:
        """Start a supervisor, which starts its worker."""
        supervisor = WorkerSupervisor(
            spec, self._config, numbers=self._numbers, telemetry=self._telemetry
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
        if supervisor is self._current and failure is not None and not self.failed.done():
            self.failed.set_result(failure)

    # -- calls ------------------------------------------------------------------------------

    async def submit(self, call: Call, reply: Reply) -> range:
        """See `CallService`."""
        return await self._current.remote.submit(call, reply)

    def cancel(self, request_ids: range) -> None:
        """See `CallService`."""
        for supervisor in self._supervisors:
            supervisor.remote.cancel(request_ids)

    async def score(
        self, prompt: object, continuations: object, beside: CallOptions
    ) -> list[Score]:
        """See `CallService`."""
        return await self._current.remote.score(prompt, continuations, beside)

    async def embed(self, texts: object, pooling: object, beside: CallOptions) -> list[Embedding]:
        """See `CallService`."""
        return await self._current.remote.embed(texts, pooling, beside)

    async def add_prefix(self, prefix: object, name: object, namespace: object) -> PrefixInfo:
        """See `CallService`."""
        return await self._current.remote.add_prefix(prefix, name, namespace)

    async def remove_prefix(self, name: object, namespace: object) -> None:
        """See `CallService`."""
        await self._current.remote.remove_prefix(name, namespace)

    async def prefixes(self) -> tuple[PrefixInfo, ...]:
        """See `Batcher.prefixes`."""
        return await self._current.remote.prefixes()

    async def tokenize(self, content: object, is_chat: bool) -> tuple[int, ...]:
        """See `CallService`."""
        return await self._current.remote.tokenize(content, is_chat)

    async def detokenize(self, token_ids: object) -> str:
        """See `CallService`."""
        return await self._current.remote.detokenize(token_ids)

    # -- questions --------------------------------------------------------------------------

    async def hello(self) -> dict[str, Any]:
        """What the worker has said of itself; before that, what it is told to be."""
        return self._current.hello()

    async def health(self) -> Health:
        """Of the worker that new calls go to, at once, also where there is none."""
        return self._current.health()

    async def statistics(self) -> SidecarStatistics:
        """Of all workers there are and were."""
        await asyncio.gather(*(supervisor.refresh_counts() for supervisor in self._supervisors))
        # From here on nothing is awaited: all is read at one moment, and nothing twice.
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

    def attach(self, handler: Handler) -> Callable[[], None]:
        """See `Batcher.attach`. Events of all workers."""
        return attach_and_watch(self._telemetry, handler, self._watch_if_needed)

    def _watch_if_needed(self) -> None:
        for supervisor in self._supervisors:
            supervisor.remote.watch_if_needed()
