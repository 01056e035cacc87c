"""`EmbeddingDefaults`: how a model makes one vector of a text, where the caller does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .embedding_head import EmbeddingHead

__all__ = ["EmbeddingDefaults"]


@dataclass(frozen=True, slots=True)
class EmbeddingDefaults:
    """Hold what the checkpoint's own files say; the defaults are for one that says nothing.

    pooling: "last": the state of the last token; "mean": the mean of the states of all; "cls":
        the state of the first token.
    normalised: vectors have length 1.
    head: the dense layers that a pooled vector goes through, before it is normalised.
    """

    pooling: Literal["last", "mean", "cls"] = "last"
    normalised: bool = False
    head: EmbeddingHead | None = None

    @classmethod
    def of_model(cls, causal: bool) -> EmbeddingDefaults:
        """Return those of a model without files that say them. causal: it is no encoder."""
        return cls("last" if causal else "mean")
