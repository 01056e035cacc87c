"""`fingerprint`: a digest that changes whenever a checkpoint's files do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

__all__ = ["fingerprint"]


def fingerprint(files: Iterable[Path]) -> str:
    """Return a digest of the files' paths, sizes, inodes and change times; "" on an I/O error.

    Reads no contents. No program can set the change time (ctime): a file that replaces another
    has a new ctime even if size and modification time are equal. Call this before the files are
    opened, so that a change between the two calls makes the digest stale, not wrong.
    """
    digest = hashlib.sha256()
    for file in files:
        try:
            path = file.resolve(strict=True)
            status = path.stat()
        except (OSError, RuntimeError):  # RuntimeError: a cycle of symbolic links
            return ""
        facts = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        digest.update(f"{str(path)!r} {facts}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
