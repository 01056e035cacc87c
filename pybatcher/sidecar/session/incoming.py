"""`Incoming`: what one client sends, taken a little at a time: nobody else waits for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Incoming"]

_PIECE = 1024
"""Bytes that are taken at once: of the smallest frames that is more than a hundred."""

_TURN = 0.0005
"""Seconds of one turn of the loop that one client may have."""


class Incoming:
    """Between a transport and what reads its bytes, for one event loop.

    take: what reads. It is given bytes in their order; a client that has sent a lot is read from
    no more until that is taken, with turns of others in between.
    """

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._take = take
        self._transport: asyncio.ReadTransport | None = None
        self._data = b""
        self._taken = 0
        self._is_held = self._is_paused = self._will_go_on = False

    def open(self, transport: asyncio.ReadTransport) -> None:
        """Here it comes from."""
        self._transport = transport

    def close(self) -> None:
        """Nothing that has not been taken will be."""
        self._transport = None
        self._data, self._taken = b"", 0

    def feed(self, data: bytes) -> None:
        """More bytes have come."""
        self._data = self._data[self._taken :] + data if self._data else data
        self._taken = 0
        if not self._will_go_on:
            self._go_on()

    def hold(self) -> None:
        """Take nothing for now."""
        self._is_held = True
        self._pause(True)

    def release(self) -> None:
        """Go on."""
        if self._is_held:
            self._is_held = False
            self._go_on()

    def _go_on(self) -> None:
        self._will_go_on = False
        end = self._loop.time() + _TURN
        while self._taken < len(self._data) and not self._is_held:
            begin = self._taken
            self._taken += _PIECE
            self._take(self._data[begin : self._taken] if len(self._data) > _PIECE else self._data)
            if self._taken < len(self._data) and self._loop.time() > end:
                self._will_go_on = True
                self._loop.call_soon(self._go_on)
                break
        else:
            if not self._is_held:
                self._data, self._taken = b"", 0
        self._pause(self._is_held or self._will_go_on)

    def _pause(self, pause: bool) -> None:
        transport = self._transport
        if transport is None or pause == self._is_paused or transport.is_closing():
            return
        self._is_paused = pause
        if pause:
            transport.pause_reading()
        else:
            transport.resume_reading()
