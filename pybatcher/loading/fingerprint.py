"""`fingerprint`: what tells one state of a checkpoint's files from every other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

__all__ = ["fingerprint"]


def fingerprint(files: Iterable[Path]) -> str:
    """A digest of where the files are, how long, and when each was last changed.

    Their contents are not read. The change time (ctime) is the one that nobody
    can set: a file put in place of another has a new one even where its length
    and date are the old one's. Take it before the files are opened: what is
    read is then what the digest stands for, or newer. Empty where a file cannot
    be asked.
    """
    digest = hashlib.sha256()
    for file in files:
        try:
            path = file.resolve(strict=True)
            status = path.stat()
        except (OSError, RuntimeError):  # RuntimeError: links that lead in a circle
            return ""
        facts = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        digest.update(f"{str(path)!r} {facts}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
