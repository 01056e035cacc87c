"""`read_api_keys`: the keys of clients, from a file that only its owner can read."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

from ...errors import ConfigError
from .serve_config import read_option_file

__all__ = ["read_api_keys"]


def read_api_keys(path: str | os.PathLike[str], *, regular_only: bool = False) -> tuple[str, ...]:
    """Return the keys of a file: one a line. Empty lines and lines that begin with # are skipped.

    The file must not be open to others; nor to its group, if it belongs to this user. (A file of
    another user, such as root, may be meant for the group of a service.) Raises ConfigError.
    regular_only: as in `read_option_file`.
    """
    name = f"api_key_file '{Path(path)}'"
    try:
        data, status = read_option_file(path, regular_only=regular_only)
        _check_mode(name, status)
        lines = [line.strip() for line in io.StringIO(data.decode("utf-8"), newline=None)]
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is no text in UTF-8: {error}") from error
    keys: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        if not (line.isascii() and line.isprintable() and " " not in line):
            raise ConfigError(
                f"line {number} of {name} is no key: one is of ASCII characters without spaces"
            )
        keys[line] = None
    if not keys:
        raise ConfigError(f"{name} has no key; write one a line, as by: openssl rand -hex 32")
    return tuple(keys)


def _check_mode(name: str, status: os.stat_result) -> None:
    closed_to = stat.S_IRWXO | (stat.S_IRWXG if status.st_uid == os.geteuid() else 0)
    mode = stat.S_IMODE(status.st_mode)
    if mode & closed_to:
        raise ConfigError(
            f"others can open {name}, whose mode is {mode:04o}, and could take the keys; "
            f"close it to them with: chmod 600, or chmod 640 for a file of root"
        )
