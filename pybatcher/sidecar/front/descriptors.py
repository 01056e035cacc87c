"""Descriptors of open files: the limit that the connections need, and a reserve for workers."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["SpareDescriptors", "allow_descriptors"]

_OTHERS = 256  # files of the log, of the workers and of the interpreter
_LOGGER = logging.getLogger("pybatcher.sidecar")


def allow_descriptors(n_connections: int) -> None:
    """Raise the soft limit of open files so that there is one for each connection.

    It is never lowered, and goes no further than the system allows: if that is too little, the log
    has a warning, since connections then fail that `max_connections` allows.
    """
    wanted = n_connections + _OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except ValueError:  # macOS allows fewer than its hard limit (kern.maxfilesperproc)
        allowed = soft
    if allowed < wanted:
        _LOGGER.warning(
            "max_connections needs %d open files, and %d are allowed: raise the limit (ulimit -n)",
            wanted,
            allowed,
            extra={"wanted_files": wanted, "allowed_files": allowed},
        )


class SpareDescriptors:
    """Open descriptors that are closed while a worker process is started, which needs a few.

    Otherwise no worker could be started while clients hold all descriptors that the system allows.
    """

    def __init__(self, n: int = 16) -> None:
        """Open the first of at most `n` descriptors."""
        self._n = n
        self._held: list[int] = []
        self.refill()

    def refill(self) -> None:
        """Open descriptors up to the number, as far as the system has any."""
        try:
            while len(self._held) < self._n:
                self._held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Close the descriptors for the block, which must not yield to the event loop."""
        self.close()
        try:
            yield
        finally:
            self.refill()

    def close(self) -> None:
        """Close all descriptors."""
        while self._held:
            os.close(self._held.pop())
