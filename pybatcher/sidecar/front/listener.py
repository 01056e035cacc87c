"""`Listener`: one way in which clients reach the front, from its socket to its last connection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from .front import Front
from .serve_config import ServeConfig

__all__ = ["Listener"]


class Listener(ABC):
    """Takes clients of one protocol, from `start` until `close_soon`. For the loop of the front."""

    @property
    @abstractmethod
    def addresses(self) -> Mapping[str, str]:
        """Where it listens, by the name of the address in the log: a path, or a URL."""

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
        """Serve those whom this configuration lets in, and cut the connections of other users.

        Its other options stay as they were at the start.
        """

    @abstractmethod
    def close_soon(self) -> None:
        """Refuse new connections, and close each of the others when its calls have ended."""

    @abstractmethod
    async def gone(self) -> None:
        """Wait until no connection is left."""

    @abstractmethod
    def abort(self) -> None:
        """Cut all connections now, which cancels their calls."""

    @abstractmethod
    def close(self) -> None:
        """Free the sockets and their files. May be called at any time, and again."""
