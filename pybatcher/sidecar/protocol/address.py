"""The path of a sidecar's socket where the caller gives none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ...errors import ConfigError

__all__ = ["SOCKET_VARIABLE", "default_socket_path"]

SOCKET_VARIABLE = "PYBATCHER_SOCKET"
"""The environment variable that names the socket for `pybatcher serve` and for its clients."""


def default_socket_path(environ: Mapping[str, str]) -> Path:
    """Return $PYBATCHER_SOCKET, or pybatcher.sock in $XDG_RUNTIME_DIR, the user's own directory.

    Raises ConfigError where neither is set.
    """
    named = environ.get(SOCKET_VARIABLE, "")
    if named:
        return Path(named)
    directory = environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(directory):
        raise ConfigError(
            f"socket is not given, {SOCKET_VARIABLE} is not set, and XDG_RUNTIME_DIR is "
            f"{directory!r}, no directory to put one into; give a path for the socket"
        )
    return Path(directory) / "pybatcher.sock"
