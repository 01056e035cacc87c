"""Where a sidecar listens when nobody names a path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ...errors import ConfigError

__all__ = ["default_socket_path"]


def default_socket_path(environ: Mapping[str, str]) -> Path:
    """pybatcher.sock in the directory that is the user's own while they are logged in.

    ConfigError where $XDG_RUNTIME_DIR names none.
    """
    directory = environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(directory):
        raise ConfigError(
            f"socket is not given, and XDG_RUNTIME_DIR is {directory!r}, no directory to put "
            "one into; give a path for the socket"
        )
    return Path(directory) / "pybatcher.sock"
