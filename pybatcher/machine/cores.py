"""`Cores`: the CPUs that this process may use, which `Engine.cores()` returns."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cores"]


@dataclass(frozen=True, slots=True)
class Cores:
    """The CPUs that this process may use, and the number of compute threads for `n_threads=0`.

    n_threads: one thread for each physical core, fast or slow, at most `quota` rounded up.
    n_cores: physical cores with at least one CPU of the affinity mask.
    n_slow: cores among `n_cores` that are slower than others: E cores, or cores of less capacity.
    n_cpus: logical CPUs of the affinity mask.
    n_online: logical CPUs of the machine.
    quota: CPU time limit of the cgroup (a container, a service), in CPUs; None: no limit.
    """

    n_threads: int
    n_cores: int
    n_slow: int
    n_cpus: int
    n_online: int
    quota: float | None

    def reason(self) -> str:
        """Return a line that explains the value of `n_threads`."""
        cores = "1 physical core" if self.n_cores == 1 else f"{self.n_cores} physical cores"
        text = f"{self.n_threads} of {self.n_cpus} logical CPUs: {cores}"
        if self.n_slow:
            text += f", {self.n_slow} of them slow"
        if self.n_cpus < self.n_online:
            text += f"; affinity mask {self.n_cpus} of {self.n_online}"
        if self.quota is not None:
            text += f"; cgroup limit {round(self.quota, 2)}"
        return text
