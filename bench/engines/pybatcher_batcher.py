"""pybatcher as an application uses it: a `Batcher` on an event loop, one task a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from bench.engines.interface import Arrival, Server, Settings
from bench.engines.pybatcher_engine import describe, engine_options
from pybatcher import Batcher
from pybatcher.calls.completion import Completion

__all__ = ["open_server"]


def open_server(checkpoint: Path, settings: Settings) -> Server:
    return PybatcherBatcher(checkpoint, settings)


class PybatcherBatcher:
    """A `Server` over a `Batcher`, which finds shared prefixes itself."""

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        self._loop = asyncio.new_event_loop()
        self._batcher = Batcher(
            checkpoint,
            **{"n_batch": settings.n_batch, **settings.options},
            **engine_options(checkpoint, settings),
        )
        self._loop.run_until_complete(self._batcher.start())

    def facts(self) -> dict[str, str]:
        return describe(self._batcher.runtime.engine)

    def serve(self, arrivals: Sequence[Arrival]) -> list[list[float]]:
        start = time.monotonic()  # the clock that tokens are stamped with
        completions = self._loop.run_until_complete(self._all(arrivals))
        return [[t - start for t in done.timeline.token_times] for done in completions]

    def close(self) -> None:
        self._loop.run_until_complete(self._batcher.close())
        self._loop.close()

    async def _all(self, arrivals: Sequence[Arrival]) -> list[Completion]:
        return await asyncio.gather(*(self._one(arrival) for arrival in arrivals))

    async def _one(self, arrival: Arrival) -> Completion:
        await asyncio.sleep(arrival.at)
        return await self._batcher.generate(
            list(arrival.tokens), max_tokens=arrival.n_new, ignore_eos=True
        )
