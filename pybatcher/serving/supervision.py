"""`Supervisor`: decides how to react to an engine that fails or hangs. No thread, no clock.

                 failed, within intensity          restarted
    serving ────────────────────────> restarting ───────────> serving
       │  │                               │  │ failed again: as from serving
       │  └─ failed, past it ─> failed <──┘  │
       │                          ^          │
       └── overdue ──> hung <─────┼──────────┘
                        └─ ended ─┴─> restarting

In `failed` and `hung`, requests are refused. `failed` is final. A call that hangs cannot be killed
inside a process, but it may end by itself: a hang counts as a failure when it is detected, and when
it ends the engine is restarted and serves again.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from ..errors import EngineFailedError
from ..params.config import SupervisionConfig

__all__ = ["EngineStatus", "RestartIntensity", "Supervisor"]

EngineStatus = Literal["serving", "restarting", "hung", "failed"]


class RestartIntensity:
    """The rule of Erlang/OTP: at most `max_restarts` restarts in any `restart_window` seconds."""

    def __init__(self, max_restarts: int, restart_window: float) -> None:
        self._max_restarts = max_restarts
        self._restart_window = restart_window
        self._times: deque[float] = deque()

    def record(self, now: float) -> bool:
        """Count a restart at `now` (seconds). Return False if that is one too many."""
        self._times.append(now)
        while now - self._times[0] > self._restart_window:
            self._times.popleft()
        return len(self._times) <= self._max_restarts

    def forget(self) -> None:
        """Count the restarts so far no longer: their cause is gone."""
        self._times.clear()


class Supervisor:
    """The state of the engine and its reason. All times: seconds of one monotonic clock.

    status: the state in the diagram above. restarts: how often the engine was restarted.
    """

    def __init__(self, config: SupervisionConfig) -> None:
        self._config = config
        self._intensity = RestartIntensity(config.max_restarts, config.restart_window)
        self._may_restart = True
        self._last_restart: tuple[float, str] | None = None
        self.status: EngineStatus = "serving"
        self.restarts = 0
        self.failure: EngineFailedError | None = None
        """The error for new requests; None while requests are served."""

    def failed(self, error: BaseException, now: float) -> bool:
        """Count a failure of the engine. Return True to restart it, False if it failed for good."""
        self._may_restart = self._intensity.record(now)
        if self._may_restart:
            self._restart(f"{error!r}", now)
        else:
            self.status = "failed"
            self.failure = EngineFailedError(
                f"the engine failed: {error!r}; that is more than max_restarts = "
                f"{self._config.max_restarts} times in restart_window = "
                f"{self._config.restart_window:g} s: close this batcher and start another"
            )
            self.failure.__cause__ = error
        return self._may_restart

    def overdue(self, what: str, now: float) -> None:
        """Record that a job runs for longer than `step_timeout`. what: the job, in words."""
        self._may_restart = self._intensity.record(now)
        self.status = "hung"
        self.failure = EngineFailedError(
            f"{what} has not ended within step_timeout = {self._config.step_timeout:g} s and "
            "cannot be interrupted; the batcher serves again if it ends, else restart the process"
        )

    def hang_ended(self, now: float) -> bool:
        """Record that a hung job has ended. Return True to restart the engine, else False."""
        if self._may_restart:
            self._restart("a step that hung", now)
        else:
            self.status = "failed"
        return self._may_restart

    def restarted(self) -> None:
        """Record that the engine was restarted and serves again."""
        self.status, self.failure = "serving", None

    def reason(self, now: float) -> str:
        """Return the state in words."""
        if self.failure is not None:
            return str(self.failure)
        if self._last_restart is None:
            return "requests are served"
        when, why = self._last_restart
        if self.status == "restarting":
            return f"the engine is being restarted after {why}; requests wait for it"
        return (
            f"requests are served; engine restarts: {self.restarts}, the last one "
            f"{now - when:.1f} s ago after {why}"
        )

    def _restart(self, why: str, now: float) -> None:
        self.restarts += 1
        self._last_restart = (now, why)
        self.status = "restarting"
