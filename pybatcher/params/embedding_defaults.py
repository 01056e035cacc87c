"""`EmbeddingDefaults`: how a model embeds texts, unless the caller chooses a pooling."""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    dimensions: the numbers of a vector that are kept, after all else; 0: all.
    max_tokens: the most tokens of a text, special tokens included; 0: the files have no limit.
    cuts_left: True if a text that is too long loses its beginning when it is cut, else its end.
    prompt: the text that comes before every text.
    padding_token: a token that texts must not have, because the model numbers the positions after
        it in another way; None: there is no such token.

    max_tokens, cuts_left and padding_token apply with any pooling, the others with the model's own.
    """

    pooling: Literal["last", "mean", "cls"] = "last"
    normalised: bool = False
    head: EmbeddingHead | None = None
    dimensions: int = 0
    max_tokens: int = 0
    cuts_left: bool = False
    prompt: str = ""
    padding_token: int | None = None

    @classmethod
    def of_model(cls, causal: bool, padding_token: int | None = None) -> EmbeddingDefaults:
        """Return the defaults of a model without such files. causal: False for an encoder."""
        return cls("last" if causal else "mean", padding_token=padding_token)

    def with_pooling(self, pooling: Literal["last", "mean", "cls"] | None) -> EmbeddingDefaults:
        """Return the settings for a pooling that the caller names; None: the model's own."""
        if pooling is None:
            return self
        return replace(self, pooling=pooling, normalised=False, head=None, dimensions=0, prompt="")
