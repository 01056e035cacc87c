"""The interface of a measured engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

__all__ = ["GGUF_TYPES", "Arrival", "Server", "Settings", "SteppedEngine", "random_tokens"]


GGUF_TYPES = (
    "q2_k",
    "q3_k_m",
    "iq4_xs",
    "q4_1",
    "q4_k_m",
    "q5_1",
    "q5_k_m",
    "q6_k",
    "mxfp4",
)
"""Quantisation mixes that only GGUF files have: pybatcher loads the file that llama.cpp made.

"mxfp4" is for shapes with experts: the experts are in MXFP4, everything else in Q8_0.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that are equal for all engines of a run.

    dtype: the dtype of the weights in pybatcher's terms; another engine uses its format of that
        size.
    kv_dtype: "auto" is the engine's default.
    n_batch: the most tokens of a step, for engines that split long prompts.
    share_prefixes: prompts with a common beginning can share KV, if the engine supports it.
    options: options of pybatcher's Batcher, by name; other engines ignore them.
    device: the device in pybatcher's terms; other engines run on the CPU.
    """

    dtype: str
    n_ctx: int
    n_parallel: int
    n_threads: int
    n_batch: int = 512
    kv_dtype: str = "auto"
    share_prefixes: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of `n_new` tokens that arrives `at` seconds after the start.

    n_shared: number of leading tokens that all arrivals have in common; used only by an engine that
    cannot find shared prefixes itself.
    """

    at: float
    tokens: Sequence[int]
    n_new: int
    n_shared: int = 0


class SteppedEngine(Protocol):
    """An engine with a checkpoint loaded, driven step by step.

    Times are seconds of wall clock. Token ids are below the checkpoint's vocabulary. `logits` and
    `prefill` require an engine without live sequences, and leave none.
    """

    def facts(self) -> dict[str, str]:
        """Return name, version and configuration."""

    def logits(self, sequences: Sequence[Sequence[int]]) -> np.ndarray:
        """Return the logits after every token: float32 (n_sequences, length, vocab).

        sequences: sequences of equal length.
        """

    def last_logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the logits after the last token: float32 (vocab,)."""

    def prefill(self, tokens: Sequence[int]) -> float:
        """Compute a prompt and the logits of its last token; return the seconds."""

    def extend(self, prompts: Sequence[Sequence[int]]) -> None:
        """Add live sequences, so that the next step gives each a token."""

    def steps(self, count: int) -> list[float]:
        """Run `count` steps, one token per live sequence; return their seconds."""

    def clear(self) -> None:
        """Remove all live sequences."""

    def close(self) -> None:
        """Release the engine. This is the last call."""


class Server(Protocol):
    """An engine that takes requests as they arrive and schedules them itself."""

    def facts(self) -> dict[str, str]:
        """Return name, version and configuration."""

    def serve(self, arrivals: Sequence[Arrival]) -> list[list[float]]:
        """Serve the arrivals; return the time of each token of each, in seconds from the start."""

    def close(self) -> None:
        """Release the engine. This is the last call."""


def random_tokens(count: int, seed: int) -> list[int]:
    """Return `count` random token ids below 256, which every checkpoint has."""
    return np.random.default_rng(seed).integers(0, 256, count).tolist()
