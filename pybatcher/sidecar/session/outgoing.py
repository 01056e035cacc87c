"""`Outgoing`: what is on its way to one client, and whether it reads what it is sent.

What is sent within one turn of the loop is one write. Of a client that does not read, deltas
are held back (`may_send`); where its answers pile up all the same, it is not read from either.
"""

from __future__ import annotations

import asyncio

from ..protocol.connection import ServerProtocol
from .incoming import Incoming

__all__ = ["Outgoing"]

_UNSENT = 65536
"""Bytes for a client in this process past which its deltas wait."""

_UNREAD_ANSWERS = 262144
"""Bytes of answers past that, past which no more of its requests are read."""


class Outgoing:
    """Between a protocol and its transport, for one event loop.

    incoming: from where the same client is read.
    """

    def __init__(self, protocol: ServerProtocol, incoming: Incoming) -> None:
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._transport: asyncio.Transport | None = None
        self._will_flush = False
        self._incoming = incoming
        self._n_unread = 0
        self.may_send = True
        """The client reads what is sent; else deltas had better wait."""

    def open(self, transport: asyncio.Transport) -> None:
        """Here it goes from now on."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_UNSENT)

    def close(self) -> None:
        """Nothing can be sent any more."""
        self._transport = None

    def flush_soon(self) -> None:
        """What the protocol has, and gets in this turn of the loop, is sent at its end."""
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what the protocol has."""
        self._will_flush = False
        data = self._protocol.data_to_send()
        transport = self._transport
        if not data or transport is None:
            return
        if not self.may_send:
            self._n_unread += len(data)
        transport.write(data)
        if self._n_unread > _UNREAD_ANSWERS:
            self._incoming.hold()

    def paused(self) -> None:
        """The transport has more than enough."""
        self.may_send = False

    def resumed(self) -> None:
        """Nearly all of it was read."""
        self.may_send = True
        self._n_unread = 0
        self._incoming.release()
