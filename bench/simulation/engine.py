"""An engine without a model: the compiled KV bookkeeping, and synthetic tokens."""

from __future__ import annotations

from collections.abc import Sequence

from bench.serving.traces import TraceRequest
from bench.simulation.costs import Work
from pybatcher import _core
from pybatcher.params import SamplingParams
from pybatcher.scheduling import SampledToken, StepPlan, StepResult

__all__ = ["END_TOKEN", "KvBookkeeping", "SimulatedEngine"]

END_TOKEN = 256
_TOKENS = [SampledToken(token) for token in range(END_TOKEN + 1)]


class KvBookkeeping(_core.KvCache):
    """The engine's own KV bookkeeping as a `KvAllocator`, without keys and values.

    owners: by sequence id, the seed and the prompt length given to `seq_sampling`.
    """

    max_sequence_length = _core.KvCache.max_length
    kv_total_blocks = _core.KvCache.total_blocks
    kv_free_blocks = _core.KvCache.free_blocks
    kv_cached_blocks = _core.KvCache.cached_blocks
    kv_appendable_blocks = _core.KvCache.appendable_blocks
    kv_most_appendable_blocks = _core.KvCache.total_blocks
    takes_drafts = True

    def __init__(self, *, n_ctx: int, n_parallel: int, block_size: int) -> None:
        n_blocks = -(-n_ctx // block_size)
        super().__init__(
            n_blocks=n_blocks,
            block_size=block_size,
            n_parallel=n_parallel,
            max_length=n_blocks * block_size,
            copy_block=lambda group, source, target: None,
        )
        self.owners: dict[int, tuple[int, int]] = {}

    def seq_sampling(
        self,
        seq_id: int,
        params: SamplingParams | None,
        *,
        seed: int = 0,
        n_prompt: int = 0,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        """Record the owner of the sequence; `seed` is the request's place in the trace."""
        self.owners[seq_id] = (seed, n_prompt)


class SimulatedEngine:
    """Steps over a `KvBookkeeping`. A token is a hash of its position and of its request.

    A request ends as in its trace, with an end token if it asked for more.

    preemptions: the number of times that a request continued with less KV than before.
    recomputed_tokens: rows for tokens that had been computed before.
    """

    def __init__(self, book: KvBookkeeping, trace: Sequence[TraceRequest]) -> None:
        self._book = book
        self._trace = trace
        self._held = [0] * len(trace)  # tokens in KV after a request's last step
        self._computed = [0] * len(trace)  # the most tokens a request ever had in KV
        self.preemptions = self.recomputed_tokens = 0

    def step(self, plan: StepPlan) -> tuple[StepResult, Work]:
        """Run the plan on the bookkeeping; return its result and its work."""
        book = self._book
        sampled: dict[int, tuple[SampledToken, ...]] = {}
        decode_context = prefill_context = 0
        for place, entry in enumerate(plan.entries):
            seq_id, tokens = entry.seq_id, entry.tokens
            before, count = book.seq_length(seq_id), len(tokens)
            if place < plan.decode_rows:
                decode_context += count * (before + 1)
            else:
                prefill_context += count * before + count * (count + 1) // 2
            book.reserve(seq_id, tokens)
            kept = count
            if entry.sample:
                drawn = self._draw(seq_id, before + count - entry.n_draft, tokens, entry.n_draft)
                sampled[seq_id] = drawn
                kept = count - entry.n_draft + len(drawn) - 1
            book.commit(seq_id, kept)
            if seq_id in book.owners:
                self._count(book.owners[seq_id][0], before, before + kept)
        work = Work(
            plan.decode_rows + plan.draft_rows, plan.prefill_rows, decode_context, prefill_context
        )
        return StepResult(sampled), work

    def token(self, index: int, position: int) -> int:
        """Return the token of the trace's `index`-th request at a position.

        END_TOKEN after the request's output.
        """
        request = self._trace[index]
        last = request.prompt_tokens + request.new_tokens - 1
        if position > last or (position == last and request.max_tokens > request.new_tokens):
            return END_TOKEN
        return (index * 0x9E3779B1 ^ position * 0x85EBCA6B) >> 13 & 255

    def _draw(
        self, seq_id: int, position: int, tokens: Sequence[int], n_draft: int
    ) -> tuple[SampledToken, ...]:
        """Return the next token, and one more for each accepted draft token."""
        index, _ = self._book.owners[seq_id]
        drawn = [self.token(index, position)]
        for draft in tokens[len(tokens) - n_draft :]:
            if draft != drawn[-1]:
                break
            drawn.append(self.token(index, position + len(drawn)))
        return tuple([_TOKENS[token] for token in drawn])

    def _count(self, index: int, before: int, after: int) -> None:
        known = self._computed[index]
        if before < self._held[index]:
            self.preemptions += 1
        if before < known:
            self.recomputed_tokens += min(known, after) - before
        self._held[index] = after
        self._computed[index] = max(known, after)
