"""What a benchmark asks of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

__all__ = ["Contestant", "Settings", "random_tokens"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Equal for all contestants of a run."""

    dtype: str
    n_ctx: int
    n_parallel: int
    n_threads: int
    n_batch: int = 512


class Contestant(Protocol):
    """An engine with a checkpoint loaded. Every call starts from an empty KV cache.

    Times are seconds of wall clock. Token ids are below the checkpoint's vocabulary.
    """

    def facts(self) -> dict[str, str]:
        """Name, version and what it runs on."""

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """float32 (vocab,) after the last of `tokens`: to see that both compute one model."""

    def prefill(self, tokens: Sequence[int]) -> float:
        """Time of one prompt, until the logits of its last token are there."""

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> list[float]:
        """Times of `steps` steps that each give one token to every prompt."""


def random_tokens(count: int, seed: int) -> list[int]:
    """`count` token ids that every checkpoint has (bytes)."""
    return np.random.default_rng(seed).integers(0, 256, count).tolist()
