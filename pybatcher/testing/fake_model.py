"""`FakeModel`: logits and states that are a deterministic function of the tokens so far.

The most likely next token is a hash of all tokens before it. The likelihood of another token falls
with its id minus that token's id, modulo the vocabulary.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count

from ..params import SamplingParams
from ..scheduling.plan import SampledToken, TopLogprobs

__all__ = ["FakeModel", "FakeSampling"]


@dataclass(frozen=True, slots=True)
class FakeSampling:
    """Sampling settings of one sequence: the arguments of `seq_sampling`.

    Only temperature, min_tokens and logprobs of the parameters are used.
    """

    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    n_prompt: int = 0
    stop_token_ids: frozenset[int] = frozenset()

    @property
    def key(self) -> int:
        """The seed, or 0 if the temperature is 0: with the tokens, it determines a sample."""
        return self.seed if self.params.temperature else 0

    def forbidden(self, length: int) -> frozenset[int]:
        """Return the token ids that must not be sampled after `length` tokens."""
        too_early = length - self.n_prompt < self.params.min_tokens
        return self.stop_token_ids if too_early else frozenset()


class FakeModel:
    """Next tokens, log-probabilities, logits and states, computed from the tokens so far."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size

    def draw(
        self, tokens: Sequence[int], sampling: FakeSampling, chosen: int | None = None
    ) -> SampledToken:
        """Sample the token after `tokens`, with log-probabilities if `sampling` requests them.

        chosen: the token; None: a hash of `tokens`.
        """
        token_id = self._token(tokens, sampling) if chosen is None else chosen
        n_top = sampling.params.logprobs
        if n_top is None:
            return SampledToken(token_id)
        return SampledToken(token_id, self.logprob(tokens, token_id), self.top(tokens, n_top))

    def _token(self, tokens: Sequence[int], sampling: FakeSampling) -> int:
        forbidden = sampling.forbidden(len(tokens))
        attempts = (_hash(tokens, sampling.key, i) % self.vocab_size for i in count())
        return next(token_id for token_id in attempts if token_id not in forbidden)

    def logprob(self, tokens: Sequence[int], token: int) -> float:
        """Return the log-probability of `token` after `tokens`, without sampling parameters."""
        drawn = _hash(tokens, 0, 0)
        return -(drawn % 1009) / 1009 - (token - drawn) % self.vocab_size

    def top(self, tokens: Sequence[int], n_top: int) -> TopLogprobs:
        """Return the log-probabilities of the `n_top` likeliest tokens after `tokens`."""
        likeliest = _hash(tokens, 0, 0) % self.vocab_size
        ids = ((likeliest + i) % self.vocab_size for i in range(min(n_top, self.vocab_size)))
        return tuple((token, self.logprob(tokens, token)) for token in ids)

    def logits(self, tokens: Sequence[int]) -> list[float]:
        """Return the logits of the token after `tokens`, (vocab_size,)."""
        drawn = _hash(tokens, 0, 0)
        return [
            -(drawn % 1009) / 1009 - (token - drawn) % self.vocab_size
            for token in range(self.vocab_size)
        ]

    def pooled(self, tokens: Sequence[int], first: int) -> array[float]:
        """Return the mean state of the tokens from index `first` on, (hidden_size,)."""
        sums = [0] * self.hidden_size
        for end in range(first + 1, len(tokens) + 1):
            for i in range(self.hidden_size):
                sums[i] += _hash(tokens[:end], 1, i) % 2001 - 1000
        return array("f", (total / (1000 * (len(tokens) - first)) for total in sums))


def _hash(tokens: Sequence[int], key: int, salt: int) -> int:
    content = array("Q", tokens)
    content.append(key)
    salted = content.tobytes() + salt.to_bytes(4, "little")
    return int.from_bytes(blake2b(salted, digest_size=8).digest(), "little")
