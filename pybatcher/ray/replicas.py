"""`Replicas`: the interface between calls and the processes that serve them, and its messages.

A call is answered by a list of messages, each a tuple of a name and a value:

    began   the replica's fingerprint, when the request is in its queue
    deltas  a list of deltas, as of the sidecar's protocol
    end     the completion; the last message
    error   an error map; the last message
    full    None, and no other message: the replica takes no more requests
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import EngineFailedError
from ..sidecar.protocol.wire_images import PackedImage

__all__ = [
    "AHEAD",
    "FULL",
    "MOST_DEATHS",
    "Message",
    "Params",
    "ReplicaFullError",
    "ReplicaLostError",
    "Replicas",
    "Routing",
    "WithImages",
    "given_up",
    "plain_params",
    "with_images",
]

AHEAD = 4
"""Requests that a replica accepts for each place of its batch."""

MOST_DEATHS = 3
"""Replicas that may die one after the other with a request that gets no new token meanwhile."""

Message = tuple[str, Any]

FULL: Message = ("full", None)


@dataclass(frozen=True, slots=True)
class Routing:
    """Facts about a call that the choice of a replica uses.

    prefix: hashes of the prompt's blocks, 8 bytes each. fingerprint: that of the replica that
        sampled the first tokens of the output; "" before the first token.
    """

    prefix: bytes = b""
    fingerprint: str = ""


class WithImages(NamedTuple):
    """Params of a call or a question, and the bytes of the images that they refer to, by digest."""

    params: list[Any]
    images: Mapping[str, bytes]


Params = list[Any] | WithImages


class ReplicaLostError(Exception):
    """The replica that served a call has died or cannot be reached."""


class ReplicaFullError(Exception):
    """The replica takes no more requests."""


class Replicas(ABC):
    """Replicas of one model. Every method raises ReplicaLostError, or a PybatcherError."""

    @abstractmethod
    def stream(
        self, method: str, params: Params, routing: Routing
    ) -> AsyncGenerator[list[Message]]:
        """Serve `generate` or `chat` with the params of the sidecar's protocol.

        Closing the generator cancels the request.
        """

    @abstractmethod
    async def ask(self, method: str, params: Params) -> Message:
        """Have one replica answer a question: ("end", result), ("error", error map) or FULL."""

    @abstractmethod
    async def ask_all(self, method: str, params: list[Any]) -> list[Message]:
        """Have every replica answer a question; replicas that die meanwhile are left out."""


def with_images(params: list[Any], images: Iterable[PackedImage]) -> Params:
    """Return params with the images that they refer to; without any, the params."""
    contents = {image.digest: image.data for image in images}
    return WithImages(params, contents) if contents else params


def plain_params(params: Params) -> list[Any]:
    """Return params without their images."""
    return params.params if isinstance(params, WithImages) else params


def given_up(what: str) -> EngineFailedError:
    """Return the error of a call during which MOST_DEATHS replicas were lost."""
    return EngineFailedError(
        f"{MOST_DEATHS} replicas were lost with {what}, one after the other; it may be the cause"
    )
