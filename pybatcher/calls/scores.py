"""`Score` and `Embedding`: the results of scored and embedded texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import EngineFailedError
from ..scheduling.plan import TopLogprobs

if TYPE_CHECKING:
    from array import array

    import numpy as np
    from numpy.typing import NDArray

    from ..params.embedding_defaults import EmbeddingDefaults

__all__ = ["Answer", "Embedding", "Score"]

_SMALLEST_NORM = 1e-12  # the epsilon of torch's normalize; the vector may be zero
_SHOWN = 3  # numbers of a vector that `repr` shows


@dataclass(frozen=True, slots=True, repr=False)
class Score:
    """The log-probability of a continuation, in nats. `repr` shows the sum.

    logprob: the log-probability of the whole continuation, the sum of `token_logprobs`.
    token_logprobs: the log-probability of each token, given all tokens before it, in the model's
        own distribution, as in a completion's `logprobs`.
    token_ids: the continuation's tokens.
    top_logprobs: for each token, (token id, log-probability) of the likeliest tokens at its
        position, best first; empty unless requested.
    """

    logprob: float
    token_logprobs: tuple[float, ...]
    token_ids: tuple[int, ...]
    top_logprobs: tuple[TopLogprobs, ...] = ()

    def __repr__(self) -> str:
        return f"<Score {self.logprob:.6g}, {len(self.token_ids)} tokens>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Embedding:
    """A text as one vector. `repr` shows its beginning.

    vector: float32, of hidden_size elements or of the output size of the model's dense layers;
        normalised to length 1 if the model's own files say so.
    prompt_tokens: number of tokens of the text. cached_tokens: how many of them had their KV
        already.
    """

    vector: NDArray[np.float32]
    prompt_tokens: int
    cached_tokens: int

    def __repr__(self) -> str:
        first = ", ".join(f"{number:.4g}" for number in self.vector[:_SHOWN])
        more = ", ..." if len(self.vector) > _SHOWN else ""
        return (
            f"<Embedding [{first}{more}], {len(self.vector)} numbers, {self.prompt_tokens} tokens>"
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one scored or embedded request, as the engine returns it.

    logprobs: the log-probability of each target, in nats; empty for an embedding.
    vector: (hidden_size) float32; None for a score.
    top_logprobs: the likeliest tokens for each target; empty unless requested.
    """

    logprobs: tuple[float, ...]
    vector: array[float] | None
    cached_tokens: int
    top_logprobs: tuple[TopLogprobs, ...] = ()

    def embedding(self, prompt_tokens: int, defaults: EmbeddingDefaults) -> Embedding:
        """Return the vector as an embedding: through the dense layers, then normalised, if
        configured.

        defaults: the embedding head of the model. Raises EngineFailedError if dense layers produce
            numbers that are not finite.
        """
        import numpy as np

        vector = np.array(self.vector)
        if defaults.head is not None:
            vector = defaults.head(vector)
            if not np.isfinite(vector).all():
                raise EngineFailedError(
                    "the model's dense layers make an embedding that is not finite; "
                    "name a pooling to get vectors without them"
                )
        if defaults.normalised:
            vector /= max(float(np.linalg.norm(vector)), _SMALLEST_NORM)
        if defaults.dimensions:
            vector = vector[: defaults.dimensions].copy()
        return Embedding(vector, prompt_tokens, self.cached_tokens)
