"""`BodyRoom`: the memory that bodies take while they are sent, of all requests together."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from .http_error import HttpError

if TYPE_CHECKING:
    from typing import Self

__all__ = ["BodyRoom", "TakenRoom"]

_FREE = 2**16  # bytes of each body that take no room


class BodyRoom:
    """Room for bodies that are received or parsed. most: bytes of all together.

    The first 64 KiB of each take none: there are no more of them than connections, and whoever
    sends little is not turned away because others send much.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._n_taken = 0

    @property
    def n_taken(self) -> int:
        """Bytes that are taken."""
        return self._n_taken

    def one(self) -> TakenRoom:
        """Return the room of one body, of which nothing is taken yet."""
        return TakenRoom(self)

    def change(self, n_bytes: int) -> None:
        """Take so many bytes, or give them back where they are negative. Raises HttpError."""
        if n_bytes > 0 and self._n_taken + n_bytes > self._most:
            raise HttpError(
                503,
                f"the bodies of all requests that are being sent have more than {self._most} bytes "
                "together; send this one again later",
                type="server_error",
                code="overloaded",
                headers={"retry-after": "1", "retry-after-ms": "1000"},
            )
        self._n_taken += n_bytes


class TakenRoom:
    """The room that one body takes until the end of its `with`."""

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self._n_bytes = 0

    def take(self, n_bytes: int) -> None:
        """Take room for a body that has so many bytes by now. Raises HttpError: there is none."""
        grown = max(n_bytes - _FREE, self._n_bytes)
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
