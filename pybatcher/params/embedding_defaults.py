"""`EmbeddingDefaults`: how a model makes one vector of a text, where the caller does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["EmbeddingDefaults"]


@dataclass(frozen=True, slots=True)
class EmbeddingDefaults:
    """Hold what the checkpoint's own files say; the defaults are for one that says nothing.

    pooling: "last": the state of the last token; "mean": the mean of the states of all.
    normalised: vectors have length 1.
    """

    pooling: Literal["last", "mean"] = "last"
    normalised: bool = False
