"""`Cores`: the CPUs that this process may use, which `Engine.cores()` returns."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cores"]


@dataclass(frozen=True, slots=True)
class Cores:
    """CPUs that this process may use, and the compute threads that `n_threads=0` makes of them.

    n_threads: one a physical core, fast or slow, but no more than `quota`, rounded up.
    n_cores: physical cores that have one of the CPUs or more.
    n_slow: cores that are slower than others of them: E cores, those of less capacity.
    n_cpus: logical CPUs of the affinity mask.
    n_online: logical CPUs of the machine.
    quota: CPUs' worth of time that a cgroup (a container, a service) may take; None: no limit.
    """

    n_threads: int
    n_cores: int
    n_slow: int
    n_cpus: int
    n_online: int
    quota: float | None

    def reason(self) -> str:
        """Return how `n_threads` comes about, in one line."""
        cores = "1 physical core" if self.n_cores == 1 else f"{self.n_cores} physical cores"
        text = f"{self.n_threads} of {self.n_cpus} logical CPUs: {cores}"
        if self.n_slow:
            text += f", {self.n_slow} of them slow"
        if self.n_cpus < self.n_online:
            text += f"; affinity mask {self.n_cpus} of {self.n_online}"
        if self.quota is not None:
            text += f"; cgroup limit {round(self.quota, 2)}"
        return text
