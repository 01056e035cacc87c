"""`Listener`: a way in which clients reach the front, from its socket to its last connection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from .front import Front
from .serve_config import ServeConfig

__all__ = ["Listener"]


class Listener(ABC):
    """Accepts clients of one protocol, from `start` until `close_soon`. For the front's loop."""

    @property
    @abstractmethod
    def addresses(self) -> Mapping[str, str]:
        """The addresses it listens on, by their names in the log: a path, or a URL."""

    @property
    @abstractmethod
    def n_connections(self) -> int:
        """Number of connected clients."""

    def serves(self, model: str) -> bool:
        """Return whether its clients can call this model."""
        return True

    @abstractmethod
    async def start(self, fronts: Mapping[str, Front]) -> None:
        """Serve clients with the calls of these fronts, by the names of their models."""

    @abstractmethod
    def use(self, config: ServeConfig) -> None:
        """Apply the access rules of this configuration, and cut connections that it does not allow.

        Other options stay as they were at the start.
        """

    @abstractmethod
    def close_soon(self) -> None:
        """Refuse new connections, and close each open one when its calls have ended."""

    @abstractmethod
    async def gone(self) -> None:
        """Wait until no connection is left."""

    @abstractmethod
    def abort(self) -> None:
        """Cut all connections now, which cancels their calls."""

    @abstractmethod
    def close(self) -> None:
        """Free the sockets and their files. May be called at any time, and again."""
