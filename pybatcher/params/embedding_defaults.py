"""`EmbeddingDefaults`: how a model embeds texts, unless the caller chooses a pooling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .embedding_head import EmbeddingHead

__all__ = ["EmbeddingDefaults"]


@dataclass(frozen=True, slots=True)
class EmbeddingDefaults:
    """The embedding settings of the checkpoint's own files, or the defaults without such files.

    pooling: "last": the state of the last token; "mean": the mean of all states; "cls": the state
        of the first token.
    normalised: True if vectors have length 1.
    head: the dense layers that are applied to a pooled vector before it is normalised.
    """

    pooling: Literal["last", "mean", "cls"] = "last"
    normalised: bool = False
    head: EmbeddingHead | None = None

    @classmethod
    def of_model(cls, causal: bool) -> EmbeddingDefaults:
        """Return the defaults of a model without such files. causal: False for an encoder."""
        return cls("last" if causal else "mean")
