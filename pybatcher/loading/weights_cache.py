"""Where packed weights stay from one start to the next, and what becomes of them.

One file a model, dtype and kind of CPU, written by the compiled engine, which also
checks all of it before use. Nothing in here is ever an error: a start without the
cache is slower, and that is all.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from ..config import CachePlace
from . import LoadedModel

__all__ = ["CachedWeights", "cache_for", "default_directory", "list_cached"]

WORTH_BYTES = 100_000_000  # of a checkpoint: below, packing takes no time that anybody notices
UNUSED_SECONDS = 30 * 86400.0  # after which a file goes
ABANDONED_SECONDS = 86400.0  # after which nobody is writing a temporary file any more
_SUFFIX = ".packed"


@dataclass(frozen=True, slots=True)
class CachedWeights:
    """A file of packed weights. last_used: seconds since the epoch."""

    path: Path
    bytes: int
    last_used: float


def default_directory() -> Path:
    """`pybatcher` below $XDG_CACHE_HOME, or below ~/.cache where that is not an absolute path.

    Raises RuntimeError where there is no home directory.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if given.startswith("/") else Path.home() / ".cache"
    return base / "pybatcher"


def cache_for(model: LoadedModel, place: CachePlace) -> tuple[str, str, str] | None:
    """Directory, name and key for the engine; None: this model is not cached.

    Makes the directory and removes what was left in it and is of no use.
    """
    if place is False or place == "off" or not model.fingerprint:
        return None
    try:
        if place is None or place == "auto":
            if sum(tensor.array.nbytes for tensor in model.tensors.values()) < WORTH_BYTES:
                return None
            directory = default_directory()
        else:
            directory = Path(str(place)).expanduser()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        if place is not None and place != "auto":  # else: a home that is read-only, or not there
            warnings.warn(f"weights_cache={place!r} is of no use: {error}", stacklevel=3)
        return None
    _prune(directory)
    return os.path.abspath(directory), _file_name(model.name), _key(model)


def list_cached(directory: Path) -> list[CachedWeights]:
    """The files in `directory`, the last used one first."""
    found = []
    for path in _files(directory, _SUFFIX):
        with suppress(OSError):
            status = path.lstat()
            found.append(CachedWeights(path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda cached: -cached.last_used)


def _prune(directory: Path) -> None:
    now = time.time()
    for suffix, seconds in ((_SUFFIX, UNUSED_SECONDS), (".tmp", ABANDONED_SECONDS)):
        for path in _files(directory, suffix):
            with suppress(OSError):  # somebody else was faster
                if path.lstat().st_mtime < now - seconds:
                    path.unlink()


def _files(directory: Path, suffix: str) -> Iterator[Path]:
    """Ours in `directory`, with this ending."""
    pattern = re.compile(rf".*-[0-9a-f]{{16}}{re.escape(_SUFFIX)}(\.[0-9]+-[0-9]+\.tmp)?")
    with suppress(OSError):
        for path in directory.iterdir():
            if path.name.endswith(suffix) and pattern.fullmatch(path.name):
                yield path


def _file_name(name: str) -> str:
    """What of a model's name can be part of a file's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip(".")[:60] or "model"


def _key(model: LoadedModel) -> str:
    """All that packed weights depend on but for dtype and CPU, which the engine adds."""
    try:
        version = metadata.version("pybatcher")
    except metadata.PackageNotFoundError:
        version = ""
    facts = f"{version}\n{model.fingerprint}\n{sorted(asdict(model.config).items())}"
    return hashlib.sha256(facts.encode(errors="surrogateescape")).hexdigest()
