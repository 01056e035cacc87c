"""What a benchmark asks of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

__all__ = ["Arrival", "Contestant", "Server", "Settings", "random_tokens"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Equal for all contestants of a run.

    dtype: of the weights, in pybatcher's words; a rival takes what it has of that size.
    kv_dtype: "auto" is what the engine does when nobody asks.
    n_batch: tokens of one step, for who cuts long prompts into several.
    share_prefixes: prompts that begin alike may share KV, where the engine can.
    options: of pybatcher's Batcher, by name; no rival has them.
    """

    dtype: str
    n_ctx: int
    n_parallel: int
    n_threads: int
    n_batch: int = 512
    kv_dtype: str = "auto"
    share_prefixes: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of `n_new` tokens that comes `at` seconds after the start.

    n_shared: the first so many of `tokens` are those of every other arrival too; only for an
    engine that has to be told.
    """

    at: float
    tokens: Sequence[int]
    n_new: int
    n_shared: int = 0


class Contestant(Protocol):
    """An engine with a checkpoint loaded, step by step.

    Times are seconds of wall clock. Token ids are below the checkpoint's vocabulary. `logits` and
    `prefill` need an engine without live sequences, and leave none.
    """

    def facts(self) -> dict[str, str]:
        """Name, version and what it runs on."""

    def logits(self, sequences: Sequence[Sequence[int]]) -> np.ndarray:
        """float32 (n_sequences, length, vocab): after every token of sequences of one length."""

    def last_logits(self, tokens: Sequence[int]) -> np.ndarray:
        """float32 (vocab,) after the last of `tokens`."""

    def prefill(self, tokens: Sequence[int]) -> float:
        """Time of one prompt, until the logits of its last token are there."""

    def extend(self, prompts: Sequence[Sequence[int]]) -> None:
        """More live sequences, up to the point where the next step gives each a token."""

    def steps(self, count: int) -> list[float]:
        """Times of `count` steps that each give one token to every live sequence."""

    def clear(self) -> None:
        """No live sequences any more."""

    def close(self) -> None:
        """Last call."""


class Server(Protocol):
    """An engine that takes requests as they come and decides itself what it computes when."""

    def facts(self) -> dict[str, str]:
        """Name, version and what it runs on."""

    def serve(self, arrivals: Sequence[Arrival]) -> list[list[float]]:
        """When each token of each arrival was there, in seconds from the start."""

    def close(self) -> None:
        """Last call."""


def random_tokens(count: int, seed: int) -> list[int]:
    """`count` token ids that every checkpoint has (bytes)."""
    return np.random.default_rng(seed).integers(0, 256, count).tolist()
