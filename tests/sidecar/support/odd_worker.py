"""A worker with something wrong with it, by what its system prompt says. Run as a module.

poison      dies of any prompt with "poison" in it
memory      is killed by SIGKILL for any prompt with "poison" in it, as for lack of memory
stuck       its engine comes no further in the first worker of a folder, and the loop beats on
deaf        says nothing any more in the first worker of a folder, once asked
other       its model's files are others in each worker
reading     reads its first prompt for longer than a hang takes, off its loop
hopeless    its batcher fails for good at the first request of the first worker
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from pybatcher.batcher import Batcher
from pybatcher.calls.call import Call
from pybatcher.calls.reply import Reply
from pybatcher.serving.service import Service
from pybatcher.sidecar import worker
from pybatcher.sidecar.session import session

_start, _submit, _heartbeat = Batcher.start, Service.submit, Service.heartbeat
_ways: set[str] = set()
_reads = asyncio.Event()
_TICKS = 8  # heartbeats within a `hang_timeout`


async def start(self: Batcher) -> None:
    """Read what is to be wrong from the system prompt, which is none then."""
    way, _, folder = (self._system_prompt or "").partition(":")
    self._system_prompt = None
    if folder:
        mark = Path(folder) / "was-here"
        if not mark.exists():
            mark.touch()
            _ways.add(way)
    else:
        _ways.add(way)
    if way == "hopeless":
        self._supervision = type(self._supervision)(max_restarts=0)
    await _start(self)
    if way == "other":
        runtime = self.runtime
        object.__setattr__(runtime, "fingerprint", str(os.getpid()))


async def submit(self: Service, call: Call, reply: Reply) -> range:
    if "poison" in _ways and "poison" in str(call.content):
        os._exit(9)
    if "memory" in _ways and "poison" in str(call.content):
        os.kill(os.getpid(), signal.SIGKILL)
    if "deaf" in _ways:
        time.sleep(3600)  # noqa: ASYNC251
    if "stuck" in _ways:
        return range(0)  # and nothing ever comes of it
    if "reading" in _ways:
        _ways.discard("reading")
        await _reads.wait()
    if "hopeless" in _ways:
        engine: Any = self.runtime.engine

        def fail(_plan: object) -> None:
            raise RuntimeError("broken")

        engine.step = fail
    return await _submit(self, call, reply)


class CountingSession(session.ServerSession):
    """Counts the heartbeats that are sent once a prompt is read."""

    n_beats = 0

    def notify(self, method: str, params: list[Any]) -> None:
        if method == "beat" and self.n_in_flight:
            self.n_beats += 1
            if self.n_beats > 1.5 * _TICKS:
                _reads.set()
        super().notify(method, params)


def heartbeat(self: Service) -> tuple[bool, int]:
    return (True, 7) if "stuck" in _ways else _heartbeat(self)


def main() -> None:
    Batcher.start = start  # type: ignore[method-assign]
    Service.submit = submit  # type: ignore[method-assign]
    Service.heartbeat = heartbeat  # type: ignore[method-assign]
    worker.ServerSession = CountingSession  # type: ignore[misc]
    worker.main()


if __name__ == "__main__":
    main()
