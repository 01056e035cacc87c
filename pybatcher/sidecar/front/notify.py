"""`Notifier`: reports the state of the server to an init system, as sd_notify(3) does."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping

__all__ = ["Notifier"]

_LOGGER = logging.getLogger("pybatcher")
_SEND_TIMEOUT = 0.5  # seconds; an init system that reads its socket takes none


class Notifier:
    """Sends states to `address`: a path, or `@` and an abstract name. None: sends nothing.

    A state that cannot be sent is logged, and the server goes on.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Notifier:
        """Make a notifier for the address in NOTIFY_SOCKET, if there is one."""
        return cls(environ.get("NOTIFY_SOCKET") or None)

    def ready(self) -> None:
        """Report that requests are served: at the start, and again after `reloading`."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Report that options are being read again; `ready` must follow."""
        # The init system compares it with the kernel's monotonic clock (Type=notify-reload).
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Report that the server ends."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Send a status line, as `systemctl status` shows it."""
        self._send("STATUS=" + " ".join(text.split()))  # a second line would be another variable

    def _send(self, state: str) -> None:
        if self._address is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.settimeout(_SEND_TIMEOUT)
                sock.sendto(state.encode(errors="surrogateescape"), address)
        except (OSError, UnicodeError) as error:
            _LOGGER.warning("NOTIFY_SOCKET is %r and cannot be told: %s", self._address, error)
