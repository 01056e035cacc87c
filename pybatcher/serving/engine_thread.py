"""`EngineThread`: the one thread that a batcher computes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["EngineThread"]

_Job = Callable[[], None]


class EngineThread:
    """Runs jobs one after another, in their order, away from the event loop.

    A daemon thread, so that a batcher that nobody closed does not keep the
    interpreter from exiting. Jobs must not raise.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()

    def run(self, job: _Job) -> None:
        """Queue a job. Never waits."""
        self._jobs.put(job)

    def stop(self, last_job: _Job) -> None:
        """Queue one last job and end after it. Only the first call counts. Never waits."""
        if not self._stopped:
            self._stopped = True
            self._jobs.put(last_job)
            self._jobs.put(None)

    def join(self, timeout: float) -> None:
        """Wait until it has ended, at most `timeout` seconds."""
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # what it refers to is not kept while the thread waits for the next
