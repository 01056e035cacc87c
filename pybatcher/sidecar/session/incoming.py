"""`Incoming`: reads the bytes of one client a few at a time, so that others do not wait long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Incoming"]

_PIECE = 1024
"""The bytes that are read at once: more than a hundred of the smallest frames."""

_TURN = 0.0005
"""The seconds that one client has in one turn of the loop."""


class Incoming:
    """Passes the bytes of a transport on in small pieces. For one event loop.

    take: called with the bytes, in order. After a client has sent many bytes, its transport is
        paused until all of them are taken, with turns of other clients in between.
    """

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._take = take
        self._transport: asyncio.ReadTransport | None = None
        self._data = b""
        self._taken = 0
        self._is_held = self._is_paused = self._will_take_more = False

    def open(self, transport: asyncio.ReadTransport) -> None:
        """Read from this transport from now on."""
        self._transport = transport

    def close(self) -> None:
        """Drop the transport, the bytes that were not taken, and the `take` function."""
        self._transport = None
        self._data, self._taken = b"", 0
        self._take = _take_nothing

    def feed(self, data: bytes) -> None:
        """Accept received bytes, and pass them on now or in later turns of the loop."""
        self._data = self._data[self._taken :] + data if self._data else data
        self._taken = 0
        if not self._will_take_more:
            self._take_more()

    def hold(self) -> None:
        """Stop reading until `release`."""
        self._is_held = True
        self._pause(True)

    def release(self) -> None:
        """Resume reading after `hold`."""
        if self._is_held:
            self._is_held = False
            self._take_more()

    def _take_more(self) -> None:
        self._will_take_more = False
        end = self._loop.time() + _TURN
        while self._taken < len(self._data) and not self._is_held:
            begin = self._taken
            self._taken += _PIECE
            self._take(self._data[begin : self._taken] if len(self._data) > _PIECE else self._data)
            if self._taken < len(self._data) and self._loop.time() > end:
                self._will_take_more = True
                self._loop.call_soon(self._take_more)
                break
        else:
            if not self._is_held:
                self._data, self._taken = b"", 0
        self._pause(self._is_held or self._will_take_more)

    def _pause(self, pause: bool) -> None:
        transport = self._transport
        if transport is None or pause == self._is_paused or transport.is_closing():
            return
        self._is_paused = pause
        if pause:
            transport.pause_reading()
        else:
            transport.resume_reading()


def _take_nothing(data: bytes) -> None:
    """Drop bytes that come after the end."""
