"""The cache directory of packed weights: its path, the names of its files, and their removal.

The cache has one file per model, dtype and CPU target. The compiled engine writes the file and
validates it before use. Functions here raise no errors for a cache that cannot be used, because a
start without the cache is only slower.
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

from ..errors.distribution import DISTRIBUTION
from ..params.config import CachePlace
from . import LoadedModel

__all__ = ["CachedWeights", "cache_for", "default_directory", "list_cached"]

MIN_CACHED_BYTES = 100_000_000  # a smaller checkpoint is not cached: packing it takes little time
UNUSED_SECONDS = 30 * 86400.0  # a file that is unused for longer is removed
ABANDONED_SECONDS = 86400.0  # the writer of an older temporary file has ended
_SUFFIX = ".packed"


@dataclass(frozen=True, slots=True)
class CachedWeights:
    """A file of packed weights. bytes: its size. last_used: seconds since the epoch."""

    path: Path
    bytes: int
    last_used: float


def default_directory() -> Path:
    """Return $XDG_CACHE_HOME/pybatcher, or ~/.cache/pybatcher if that is not an absolute path.

    Raises RuntimeError if the user has no home directory.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if given.startswith("/") else Path.home() / ".cache"
    return base / "pybatcher"


def cache_for(model: LoadedModel, place: CachePlace) -> tuple[str, str, str] | None:
    """Return directory, file name and key for the engine; None: this model is not cached.

    Creates the directory and removes unused and abandoned files in it. Warns if the caller
    specified a directory that cannot be created.
    """
    if place is False or place == "off" or not model.weights_fingerprint:
        return None
    try:
        if place is None or place == "auto":
            if sum(tensor.n_bytes for tensor in model.tensors.values()) < MIN_CACHED_BYTES:
                return None
            directory = default_directory()
        else:
            directory = Path(str(place)).expanduser()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        if place is not None and place != "auto":  # the default may be read-only or absent
            warnings.warn(f"weights_cache={place!r} cannot be used: {error}", stacklevel=3)
        return None
    _prune(directory)
    return os.path.abspath(directory), _file_name(model.name), _key(model)


def list_cached(directory: Path) -> list[CachedWeights]:
    """Return the cached files in `directory`, the most recently used first."""
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
            with suppress(OSError):  # another process removed it first
                if path.lstat().st_mtime < now - seconds:
                    path.unlink()


def _files(directory: Path, suffix: str) -> Iterator[Path]:
    """Yield the files in `directory` that end with `suffix` and belong to the cache."""
    pattern = re.compile(rf".*-[0-9a-f]{{16}}{re.escape(_SUFFIX)}(\.[0-9]+-[0-9]+\.tmp)?")
    with suppress(OSError):
        for path in directory.iterdir():
            if path.name.endswith(suffix) and pattern.fullmatch(path.name):
                yield path


def _file_name(name: str) -> str:
    """Return a model's name, reduced to characters that are safe in a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip(".")[:60] or "model"


def _key(model: LoadedModel) -> str:
    """Return a digest of version, checkpoint and configuration.

    Packed weights also depend on dtype and CPU, which the engine adds to the key.
    """
    try:
        version = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        version = ""
    facts = f"{version}\n{model.weights_fingerprint}\n{sorted(asdict(model.config).items())}"
    if model.vision is not None:
        facts += f"\n{sorted(asdict(model.vision).items())}"
    return hashlib.sha256(facts.encode(errors="surrogateescape")).hexdigest()
