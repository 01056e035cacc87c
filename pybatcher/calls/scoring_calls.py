"""`ScoringCalls`: the part of a batcher's interface that asks about texts and continues none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..scheduling import Pooling
from .call import CallOptions, Prompt, service_of
from .inquiry import Embedding, Score

__all__ = ["ScoringCalls"]


class ScoringCalls(Protocol):
    """Log-probabilities and pooled states, in the forward passes of everybody else."""

    async def score(
        self,
        prompt: Prompt,
        continuations: Sequence[Prompt],
        *,
        priority: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109
        namespace: str | None = None,
    ) -> list[Score]:
        """How likely each continuation of `prompt` is, in the order given.

            yes, no = await batcher.score("Is the sky blue? Answer:", [" yes", " no"])
            yes.logprob > no.logprob

        prompt: a text, or token ids; begins as it would in `generate`.
        continuations: texts, or token ids, at least one. A text becomes tokens by itself,
            without special tokens: where a tokenizer would join it with the prompt's end in
            another way, hand in token ids.
        priority, timeout, namespace: as of `generate`. Past the timeout nothing is returned.

        Each continuation is a request of its own in the queue; they share the KV of the
        prompt. If one fails all do. The bits are those that a completion's `logprobs` have.
        Cancelling cancels all. Raises what `generate` does.
        """
        return await service_of(self).score(
            prompt,
            continuations,
            CallOptions(priority=priority, timeout=timeout, namespace=namespace),
        )

    async def embed(
        self,
        texts: Sequence[Prompt],
        *,
        pooling: Pooling = "last",
        priority: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109
        namespace: str | None = None,
    ) -> list[Embedding]:
        """Each text as one vector: the model's states after its last norm, pooled.

            cat, dog = await batcher.embed(["a cat", "a dog"], pooling="mean")
            float(cat.vector @ dog.vector)

        texts: texts, or token ids, at least one. No system prompt comes before them.
        pooling: "last": the state of the last token; a long text may take several steps.
            "mean": that of all; it is computed in one step whatever `max_prefill_tokens`
            and `itl_target` say, so it can have `n_batch` tokens at most. Up to `n_batch -
            n_parallel` tokens it goes beside those who generate; a longer one waits until
            enough of them have ended, and newcomers wait behind it.
        priority, timeout, namespace: as of `generate`. Past the timeout nothing is returned.

        Each text is a request of its own in the queue. If one fails all do. Cancelling
        cancels all. Raises what `generate` does, and RequestTooLongError for a text that is
        too long for its pooling.
        """
        return await service_of(self).embed(
            texts, pooling, CallOptions(priority=priority, timeout=timeout, namespace=namespace)
        )
