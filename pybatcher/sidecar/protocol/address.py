"""The default path of a sidecar's socket."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ...errors import ConfigError

__all__ = ["SOCKET_VARIABLE", "default_socket_path"]

SOCKET_VARIABLE = "PYBATCHER_SOCKET"
"""The environment variable that names the socket for `pybatcher serve` and for its clients."""


def default_socket_path(environ: Mapping[str, str]) -> Path:
    """Return $PYBATCHER_SOCKET, or pybatcher.sock in the user's own directory.

    The directory is $XDG_RUNTIME_DIR, or on macOS $TMPDIR, which is a directory for each user.
    Raises ConfigError if neither is set.
    """
    named = environ.get(SOCKET_VARIABLE, "")
    if named:
        return Path(named)
    variable = "XDG_RUNTIME_DIR"
    if sys.platform == "darwin" and not environ.get(variable):
        variable = "TMPDIR"
    directory = environ.get(variable, "")
    if not os.path.isabs(directory):
        raise ConfigError(
            f"socket is not given, {SOCKET_VARIABLE} is not set, and {variable} is "
            f"{directory!r}, no directory to put one into; give a path for the socket"
        )
    return Path(directory) / "pybatcher.sock"
