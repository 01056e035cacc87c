"""`SessionImages`: the images that a client has sent over its connection, within a limit."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

from ..protocol.limits import Limits
from ..protocol.wire_fields import ASKED
from ..protocol.wire_images import check_digest

__all__ = ["SessionImages"]

_COPIES = 2  # of an image, when its last bytes come
_OVERHEAD = 1024  # bytes that an image takes besides its own
_MOST_COMING = 64  # images whose last bytes have not come
_RESERVE = 2**22  # bytes of free memory that are left to others


class SessionImages:
    """Images by digest. An image that was not used for the longest time makes room for a new one.

    limits: `image_bytes` is the most bytes of all images, and of those that come.
    """

    def __init__(self, limits: Limits) -> None:
        self._most = limits.image_bytes
        self._free_memory = limits.free_memory
        self._whole: OrderedDict[str, bytes] = OrderedDict()
        self._coming: dict[str, _Coming] = {}
        self.n_bytes = 0

    def get(self, digest: str) -> bytes | None:
        """Return an image, and mark it as used; None: it is not here."""
        if digest in self._whole:
            self._whole.move_to_end(digest)
        return self._whole.get(digest)

    def add(self, params: list[Any]) -> None:
        """Add the next bytes of an image. Without room for it, or with a wrong digest, drop it.

        Raises InvalidRequestError for params of another kind.
        """
        if len(params) != 4:
            raise ASKED.bad("the params of image", params, "[sha256, size, offset, bytes]")
        digest, size = check_digest(params[0], "sha256"), ASKED.whole(params[1], "size", 1)
        offset, data = ASKED.whole(params[2], "offset"), params[3]
        if not isinstance(data, bytes) or not 0 < len(data) <= size - offset:
            raise ASKED.bad("bytes", data, "bytes of the image")
        if digest in self._whole:
            self._whole.move_to_end(digest)
            return
        if offset == 0:
            self._drop(digest)
            if len(self._coming) == _MOST_COMING:
                self._drop(next(iter(self._coming)))
            self._coming[digest] = _Coming(size)
            self.n_bytes += _OVERHEAD
        coming = self._coming.get(digest)
        if coming is None:  # it was dropped
            return
        is_next = (size, offset) == (coming.size, coming.n_bytes)
        if not is_next or size + _OVERHEAD > self._most or not self._has_room(len(data)):
            self._drop(digest)
            return
        self.n_bytes += len(data)
        coming.add(data)
        if coming.n_bytes == size:
            del self._coming[digest]
            if coming.hash.hexdigest() == digest:
                self._whole[digest] = b"".join(coming.parts)
            else:
                self.n_bytes -= size + _OVERHEAD

    def clear(self) -> None:
        """Drop all images."""
        self._whole.clear()
        self._coming.clear()
        self.n_bytes = 0

    def _has_room(self, n_bytes: int) -> bool:
        """Return whether so many bytes more may be kept, after old images made room."""
        free = None if self._free_memory is None else self._free_memory()
        while self._whole and (
            self.n_bytes + n_bytes > self._most
            or (free is not None and _COPIES * n_bytes + _RESERVE > free)
        ):
            _, dropped = self._whole.popitem(last=False)
            self.n_bytes -= len(dropped) + _OVERHEAD
            free = None if free is None else free + len(dropped)
        if free is not None and _COPIES * n_bytes + _RESERVE > free:
            return False
        return self.n_bytes + n_bytes <= self._most

    def _drop(self, digest: str) -> None:
        if (coming := self._coming.pop(digest, None)) is not None:
            self.n_bytes -= coming.n_bytes + _OVERHEAD


class _Coming:
    """An image whose last bytes have not come."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.n_bytes = 0
        self.parts: list[bytes] = []
        self.hash = hashlib.sha256()  # of a part at a time, since a whole image takes long

    def add(self, data: bytes) -> None:
        self.n_bytes += len(data)
        self.parts.append(data)
        self.hash.update(data)
