"""`FakeModel`: numbers made up of the tokens before them, as a model's are.

The likeliest next token is a hash of all tokens before it; the others are the
less likely the further above it they are, counted in a circle.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count

from ..params import SamplingParams
from ..scheduling.plan import SampledToken

__all__ = ["FakeModel", "FakeSampling"]


@dataclass(frozen=True, slots=True)
class FakeSampling:
    """How one sequence draws; the arguments of `seq_sampling`.

    Of the parameters only temperature, min_tokens and logprobs matter here.
    """

    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    n_prompt: int = 0
    stop_token_ids: frozenset[int] = frozenset()

    @property
    def key(self) -> int:
        """What a draw depends on besides the tokens."""
        return self.seed if self.params.temperature else 0

    def forbidden(self, length: int) -> frozenset[int]:
        """What must not be drawn after `length` tokens."""
        too_early = length - self.n_prompt < self.params.min_tokens
        return self.stop_token_ids if too_early else frozenset()


class FakeModel:
    """Next tokens, log-probabilities and states, all of them functions of the tokens so far."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size

    def draw(self, tokens: Sequence[int], sampling: FakeSampling) -> SampledToken:
        """The token after `tokens`."""
        forbidden = sampling.forbidden(len(tokens))
        for attempt in count():
            token_id = _hash(tokens, sampling.key, attempt) % self.vocab_size
            if token_id not in forbidden:
                break
        n_top = sampling.params.logprobs
        if n_top is None:
            return SampledToken(token_id)
        likeliest = self._likeliest(tokens)
        top = ((likeliest + i) % self.vocab_size for i in range(min(n_top, self.vocab_size)))
        return SampledToken(
            token_id,
            self.logprob(tokens, token_id),
            tuple((other, self.logprob(tokens, other)) for other in top),
        )

    def logprob(self, tokens: Sequence[int], token: int) -> float:
        """Of `token` after `tokens`, before any sampling parameter."""
        drawn = _hash(tokens, 0, 0)
        return -(drawn % 1009) / 1009 - (token - drawn) % self.vocab_size

    def logits(self, tokens: Sequence[int]) -> list[float]:
        """Of every token after `tokens`: (vocab_size)."""
        drawn = _hash(tokens, 0, 0)
        return [
            -(drawn % 1009) / 1009 - (token - drawn) % self.vocab_size
            for token in range(self.vocab_size)
        ]

    def pooled(self, tokens: Sequence[int], first: int) -> array[float]:
        """The mean of the states of the tokens from index `first` on: (hidden_size)."""
        sums = [0] * self.hidden_size
        for end in range(first + 1, len(tokens) + 1):
            for i in range(self.hidden_size):
                sums[i] += _hash(tokens[:end], 1, i) % 2001 - 1000
        return array("f", (total / (1000 * (len(tokens) - first)) for total in sums))

    def _likeliest(self, tokens: Sequence[int]) -> int:
        return _hash(tokens, 0, 0) % self.vocab_size


def _hash(tokens: Sequence[int], key: int, salt: int) -> int:
    content = array("Q", tokens)
    content.append(key)
    salted = content.tobytes() + salt.to_bytes(4, "little")
    return int.from_bytes(blake2b(salted, digest_size=8).digest(), "little")
