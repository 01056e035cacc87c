"""`ModelFiles`: the files that a model is read from, each opened once, and their fingerprint."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelFormatError
from .file_kinds import HEAD_BYTES, check_content

__all__ = ["Guard", "ModelFiles", "is_file", "map_file", "read_file", "reading"]

Guard = Callable[[Sequence[NDArray[np.uint8]]], AbstractContextManager[None]]
"""Makes a context manager within which the mapped files can be read even if they are truncated."""

_HASHED_WHOLE = 16 * 2**20  # bytes; the contents of a larger file are sampled
_SAMPLE = 4096
_SAMPLES = 64
_CHUNK = 2**20
_HAS_DIR_FD = os.open in os.supports_dir_fd and os.stat in os.supports_dir_fd


class _Identity(NamedTuple):
    """Facts about a file that change when it is replaced or written, not by chmod or a link."""

    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, status: os.stat_result) -> _Identity:
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class _Opened(NamedTuple):
    """An opened file. content: the digest of its contents, or of its identity and samples."""

    descriptor: int
    identity: _Identity
    content: bytes
    is_mapped: bool


class ModelFiles:
    """The files that a model is read from.

    Each file is opened once, relative to the opened folder, so that a folder that is replaced
    meanwhile is not mixed with its successor. Files outside of the folder are opened by path.
    """

    def __init__(self, folder: Path, guard: Guard | None = None) -> None:
        self._folder = folder
        self._guard = guard
        self._opened: dict[Path, _Opened] = {}
        self._absent: set[Path] = set()
        self._resources = ExitStack()
        weakref.finalize(self, self._resources.close)
        self._directory: int | None = None
        if _HAS_DIR_FD:
            try:
                self._directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except (OSError, ValueError):
                return  # reading a file tells why
            self._resources.callback(os.close, self._directory)

    def fingerprint(self, *, weights_only: bool = False) -> str:
        """Return a digest of the names and contents of all files that were read.

        A file of more than 16 MiB is represented by its inode, size, modification time and samples
        of its contents. weights_only: leave out files that are not mapped.
        """
        digest = hashlib.sha256()
        for path, file in sorted(self._opened.items()):
            if file.is_mapped or not weights_only:
                digest.update(repr(str(self._relative(path))).encode(errors="surrogateescape"))
                digest.update(file.content)
        return digest.hexdigest()

    def is_file(self, path: Path) -> bool:
        """Return True if `path` is a regular file that is there. Raises no error."""
        if path in self._opened:
            return True
        if self._exists(path):
            return True
        self._absent.add(path)
        return False

    def read(self, path: Path, max_bytes: int) -> bytes:
        """Return the contents of a regular file. Raises ModelFormatError."""
        descriptor, status = self._open(path)
        if status.st_size > max_bytes:
            raise ModelFormatError(f"{path}: {status.st_size} bytes; expected at most {max_bytes}")
        data = _read(descriptor, 0, status.st_size, path)
        content = hashlib.sha256(data).digest()
        self._note(path, _Opened(descriptor, _Identity.of(status), content, is_mapped=False))
        return data

    def map(self, path: Path) -> NDArray[np.uint8]:
        """Return a read-only view of a regular file in memory. Raises ModelFormatError."""
        descriptor, status = self._open(path)
        try:
            mapped = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelFormatError(f"{path}: cannot be mapped: {error}") from error
        array = np.frombuffer(mapped, np.uint8)
        if self._guard is not None:
            self._resources.enter_context(self._guard([array]))
        content = _digest_of(descriptor, status, path)
        self._note(path, _Opened(descriptor, _Identity.of(status), content, is_mapped=True))
        return array

    def are_current(self) -> bool:
        """Return True if the folder still has the files that were read, and no others of these."""
        if any(self._exists(path) for path in self._absent):
            return False
        try:
            return all(
                _Identity.of(self._stat(path)) == file.identity
                for path, file in self._opened.items()
            )
        except OSError:
            return False

    def check_unchanged(self) -> None:
        """Raise ModelFormatError if a file was written to after it was opened."""
        for path, file in self._opened.items():
            now = _Identity.of(os.fstat(file.descriptor))
            if now != file.identity:
                raise ModelFormatError(
                    f"{path}: was changed while the model was loaded (from {file.identity.size} "
                    f"to {now.size} bytes): load it again when the file is complete"
                )

    def _open(self, path: Path) -> tuple[int, os.stat_result]:
        """Open a regular file, or return the descriptor that it has from before."""
        if (known := self._opened.get(path)) is not None:
            return known.descriptor, os.fstat(known.descriptor)
        # With O_NONBLOCK, opening a named pipe does not wait for a process that writes to it.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
        flags |= getattr(os, "O_BINARY", 0)
        try:
            descriptor = os.open(*self._place(path), flags, dir_fd=self._dir_fd(path))
        except FileNotFoundError as error:
            raise ModelFormatError(f"{path}: no such file") from error
        except (OSError, ValueError) as error:
            raise ModelFormatError(f"{path}: cannot be read: {error}") from error
        self._resources.callback(os.close, descriptor)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelFormatError(f"{path}: no such file; expected a regular file")
        check_content(_read(descriptor, 0, min(HEAD_BYTES, status.st_size), path), path)
        return descriptor, status

    def _note(self, path: Path, file: _Opened) -> None:
        known = self._opened.get(path)
        if known is None or file.is_mapped:
            self._opened[path] = file

    def _exists(self, path: Path) -> bool:
        try:
            return stat.S_ISREG(self._stat(path).st_mode)
        except (OSError, ValueError):
            return False

    def _stat(self, path: Path) -> os.stat_result:
        return os.stat(*self._place(path), dir_fd=self._dir_fd(path))

    def _relative(self, path: Path) -> Path:
        return path.relative_to(self._folder) if path.is_relative_to(self._folder) else path

    def _place(self, path: Path) -> tuple[Path]:
        return (path if self._dir_fd(path) is None else self._relative(path),)

    def _dir_fd(self, path: Path) -> int | None:
        return self._directory if path.is_relative_to(self._folder) else None


_CURRENT: ContextVar[ModelFiles | None] = ContextVar("pybatcher.model_files", default=None)


@contextmanager
def reading(files: ModelFiles) -> Iterator[None]:
    """Let the functions below read through `files`, in this thread."""
    token = _CURRENT.set(files)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def is_file(path: Path) -> bool:
    """Return True if `path` is a regular file that is there."""
    return _files_of(path).is_file(path)


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return a regular file's contents; outside of `reading`, the file is opened for this call.

    Raises ModelFormatError if it cannot be read or has more than `max_bytes` bytes.
    """
    return _files_of(path).read(path, max_bytes)


def map_file(path: Path) -> NDArray[np.uint8]:
    """Return a read-only view of a regular file in memory. Raises ModelFormatError."""
    return _files_of(path).map(path)


def _files_of(path: Path) -> ModelFiles:
    return _CURRENT.get() or ModelFiles(path.parent)


def _digest_of(descriptor: int, status: os.stat_result, path: Path) -> bytes:
    digest, size = hashlib.sha256(), status.st_size
    if size <= _HASHED_WHOLE:
        for start in range(0, size, _CHUNK):
            digest.update(_read(descriptor, start, min(_CHUNK, size - start), path))
        return digest.digest()
    digest.update(repr(_Identity.of(status)).encode())
    for i in range(_SAMPLES):
        start = (size - _SAMPLE) * i // (_SAMPLES - 1)
        digest.update(_read(descriptor, start, _SAMPLE, path))
    return digest.digest()


def _read(descriptor: int, start: int, n_bytes: int, path: Path) -> bytes:
    """Read exactly `n_bytes`. Raises ModelFormatError if the file has become shorter."""
    parts = []
    try:
        os.lseek(descriptor, start, os.SEEK_SET)
        while n_bytes > 0 and (part := os.read(descriptor, n_bytes)):
            parts.append(part)
            n_bytes -= len(part)
    except OSError as error:
        raise ModelFormatError(f"{path}: cannot be read: {error}") from error
    if n_bytes:
        raise ModelFormatError(
            f"{path}: was truncated while it was read; {n_bytes} bytes are missing"
        )
    return b"".join(parts)
