"""`SharedPrefix`: tokens that many prompts begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SharedPrefix", "common_length"]


@dataclass(slots=True, eq=False)
class SharedPrefix:
    """Tokens that many prompts begin with, kept in a sequence of their own.

    The same words as a `RunningRequest`, for what never draws a token.
    """

    tokens: tuple[int, ...]
    seq_id: int
    reserved_blocks: int
    num_computed_tokens: int

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens whose KV is not there yet."""
        return len(self.tokens) - self.num_computed_tokens

    def next_tokens(self, count: int) -> tuple[int, ...]:
        """The next `count` tokens to compute."""
        return self.tokens[self.num_computed_tokens : self.num_computed_tokens + count]

    def draws_after(self, count: int) -> bool:
        """Never: nothing is generated here."""
        return False


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading tokens two sequences have in common."""
    n = min(len(first), len(second))
    if first[:n] == second[:n]:
        return n
    pairs = zip(first, second, strict=False)
    return next(i for i, (a, b) in enumerate(pairs) if a != b)
