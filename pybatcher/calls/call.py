"""`Call`: what somebody asks for, before it is checked. `CallService`: who takes calls.

`HasCallService` is a class that users call: its methods hand calls on to the service behind it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..params import SamplingParams
from .inquiry import Embedding, Score
from .prefix_info import PrefixInfo
from .stream import Reply

__all__ = [
    "Call",
    "CallOptions",
    "CallService",
    "HasCallService",
    "Messages",
    "Prompt",
    "service_of",
]

Prompt = str | Sequence[int]
"""A text, or token ids (a list, a tuple, a one-dimensional numpy array or tensor)."""

Messages = Sequence[Mapping[str, Any]]
"""A chat, as OpenAI has it: [{"role": "user", "content": "..."}, ...]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What comes beside the texts of a call, not checked yet.

    tenant: on whose behalf it is asked; tenants take turns. The sidecar sets it.
    """

    priority: int
    timeout: float | None
    namespace: str | None
    tenant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(CallOptions):
    """What is to be continued, not checked yet: a prompt, or messages if it `is_chat`.

    output: token ids that were drawn for it already. It goes on after them.
    """

    content: Prompt | Messages
    is_chat: bool = False
    params: SamplingParams | None
    sampling: Mapping[str, Any]
    output: Prompt = ()


class CallService(Protocol):
    """Who takes calls and sees to it that something comes of them, here or elsewhere."""

    @abstractmethod
    async def submit(self, call: Call, reply: Reply) -> range:
        """Check a call and send it; the ids of its requests. What comes of it goes to `reply`.

        Nothing is sent if it raises, or is cancelled on the way.
        """

    @abstractmethod
    def cancel(self, request_ids: range) -> None:
        """Nobody waits for them any more. From any thread; never waits."""

    @abstractmethod
    async def score(
        self, prompt: object, continuations: object, beside: CallOptions
    ) -> list[Score]:
        """See `Batcher.score`."""

    @abstractmethod
    async def embed(self, texts: object, pooling: object, beside: CallOptions) -> list[Embedding]:
        """See `Batcher.embed`."""

    @abstractmethod
    async def add_prefix(self, prefix: object, name: object, namespace: object) -> PrefixInfo:
        """See `Batcher.add_prefix`."""

    @abstractmethod
    async def remove_prefix(self, name: object, namespace: object) -> None:
        """See `Batcher.remove_prefix`."""

    @abstractmethod
    async def tokenize(self, content: object, is_chat: bool) -> tuple[int, ...]:
        """See `Batcher.tokenize`."""

    @abstractmethod
    async def detokenize(self, token_ids: object) -> str:
        """See `Batcher.detokenize`."""


class HasCallService(ABC):
    """A batcher whose calls a `CallService` takes, from its start on."""

    @abstractmethod
    def _running_service(self) -> CallService:
        """Or BatcherClosedError."""


def service_of(batcher: object) -> CallService:
    """Who takes the calls of a batcher, or BatcherClosedError.

    A function, so that the classes with the calls have nothing but what users call, and a
    Protocol made of them asks for no more.
    """
    if not isinstance(batcher, HasCallService):
        raise TypeError(f"{type(batcher).__name__} is no HasCallService and must define its calls")
    return batcher._running_service()
