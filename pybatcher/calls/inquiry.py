"""`Score` and `Embedding`: what is said of texts that are not continued, and how it is gathered."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import PybatcherError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Answer", "Embedding", "Inquiry", "InquiryReply", "Score"]


@dataclass(frozen=True, slots=True)
class Score:
    """How likely a continuation is, in nats.

    logprob: of all of it, the sum of `token_logprobs`.
    token_logprobs: of each token, given what is before it; by the model's own distribution,
        as a completion's `logprobs` are.
    token_ids: the continuation's tokens.
    """

    logprob: float
    token_logprobs: tuple[float, ...]
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """A text as one vector: (hidden_size) float32, as the model has it, not normalised.

    prompt_tokens: of the text; `cached_tokens` of them were not computed again.
    """

    vector: NDArray[np.float32]
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request of an inquiry."""

    logprobs: tuple[float, ...]
    vector: array[float] | None
    cached_tokens: int


class Inquiry:
    """Several requests that one caller waits for: all answers in their order, or the first error.

    For one event loop.
    """

    def __init__(self, n_requests: int) -> None:
        self.answers: asyncio.Future[Sequence[Answer]] = asyncio.get_running_loop().create_future()
        self.replies = [InquiryReply(self) for _ in range(n_requests)]
        self._n_left = n_requests

    def note(self) -> None:
        """One more has ended."""
        self._n_left -= 1
        if not self._n_left and not self.answers.done():
            self.answers.set_result([r.answer for r in self.replies if r.answer is not None])

    def fail(self, error: PybatcherError) -> None:
        """One of them failed, and with it all."""
        if not self.answers.done():
            self.answers.set_exception(error)


class InquiryReply:
    """Where one request's answer is left."""

    def __init__(self, inquiry: Inquiry) -> None:
        self._inquiry = inquiry
        self.answer: Answer | None = None

    def finish(self, answer: Answer) -> None:
        """That is it."""
        self.answer = answer
        self._inquiry.note()

    def fail(self, error: PybatcherError) -> None:
        """There will be none, and why."""
        self._inquiry.fail(error)
