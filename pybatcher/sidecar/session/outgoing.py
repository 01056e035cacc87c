"""`Outgoing`: sends bytes to one client, and detects whether the client reads them.

All messages of one turn of the loop are one write. Deltas for a client that does not read are held
back (`may_send`); if its answers pile up nevertheless, its requests are not read.
"""

from __future__ import annotations

import asyncio

from ..protocol.connection import ServerProtocol
from .incoming import Incoming

__all__ = ["Outgoing"]

_UNSENT = 65536
"""Unsent bytes of a client above which its deltas wait."""

_UNREAD_ANSWERS = 262144
"""Bytes of answers in addition, above which its requests are not read."""


class Outgoing:
    """Writes the bytes of a protocol to its transport. For one event loop.

    incoming: reads from the same client.
    """

    def __init__(self, protocol: ServerProtocol, incoming: Incoming) -> None:
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._transport: asyncio.Transport | None = None
        self._will_flush = False
        self._incoming = incoming
        self._n_unread = 0
        self.may_send = True
        """True while the client reads its messages; otherwise deltas should wait."""

    def open(self, transport: asyncio.Transport) -> None:
        """Write to this transport from now on."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_UNSENT)

    def close(self) -> None:
        """Drop the transport: nothing is sent from now on."""
        self._transport = None

    def flush_soon(self) -> None:
        """Send the protocol's bytes at the end of this turn of the loop."""
        if not self._will_flush:
            self._will_flush = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send the protocol's bytes now."""
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
        """Handle a full buffer of the transport."""
        self.may_send = False

    def resumed(self) -> None:
        """Handle a nearly empty buffer: the client has read, so its requests are read again."""
        self.may_send = True
        self._n_unread = 0
        self._incoming.release()
