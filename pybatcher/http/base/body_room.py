"""`BodyRoom`: a limit on the memory of all request bodies that are in transfer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from ...machine.cgroups import free_memory
from .http_error import HttpError

if TYPE_CHECKING:
    from typing import Self

__all__ = ["BodyRoom", "TakenRoom"]

_FREE = 2**16  # bytes of each body that do not count
_LOOK = 2**20  # bytes of a body after which the free memory is read again
_RESERVE = 2**22  # bytes of free memory that are left to others


class BodyRoom:
    """The memory for request bodies that are received or parsed.

    most: bytes for all together. free: returns the free memory of the system or of the container,
        in bytes; None: it is unknown.

    The first 64 KiB of each body do not count. Their number is bounded by the number of
    connections, and a small request is not refused because others are large.

    parsing: held while a large body is parsed. The JSON parser holds the GIL, so that many bodies
        at one time would keep the event loop from running.
    """

    def __init__(self, most: int, free: Callable[[], int | None] = free_memory) -> None:
        self.parsing = asyncio.Lock()
        self._most = most
        self._free = free
        self._n_taken = 0

    @property
    def n_taken(self) -> int:
        """The number of bytes in use."""
        return self._n_taken

    def one(self) -> TakenRoom:
        """Return the share of one body, which begins with zero bytes."""
        return TakenRoom(self)

    def change(self, n_bytes: int) -> None:
        """Reserve `n_bytes`, or release them if the number is negative. Raises HttpError (503)."""
        if n_bytes > 0 and self._n_taken + n_bytes > self._most:
            raise _overloaded(
                f"the bodies of all requests that are being sent have more than {self._most} bytes "
                "together; send this one again later"
            )
        self._n_taken += n_bytes

    def check_memory(self, n_bytes: int) -> None:
        """Raise HttpError (503) if the server has too little memory for `n_bytes` more."""
        free = self._free()
        if free is not None and n_bytes + _RESERVE > free:
            raise _overloaded(
                f"the body takes {n_bytes} bytes of memory while it is read, and the server has "
                f"{max(free - _RESERVE, 0)} left; send less at a time, or again later"
            )


def _overloaded(message: str) -> HttpError:
    return HttpError(
        503,
        message,
        type="server_error",
        code="overloaded",
        headers={"retry-after": "1", "retry-after-ms": "1000"},
    )


class TakenRoom:
    """The bytes that one body has reserved. The end of the `with` block releases them."""

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self._n_bytes = 0

    def take(self, n_bytes: int) -> None:
        """Reserve memory for a body that has `n_bytes` so far. Raises HttpError (503)."""
        grown = max(n_bytes - _FREE, self._n_bytes)
        if grown // _LOOK > self._n_bytes // _LOOK:
            self._room.check_memory(n_bytes)  # for the copy in one piece, too
        self._room.change(grown - self._n_bytes)
        self._n_bytes = grown

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._room.change(-self._n_bytes)
        self._n_bytes = 0
