"""`allow_descriptors`: raises the limit of open files to what the connections need."""

from __future__ import annotations

import logging
import resource

__all__ = ["allow_descriptors"]

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
