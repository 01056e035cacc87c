"""`Request`: what a caller asked for. `RunningRequest`: how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..params import SamplingParams
from .drafter import Drafter

__all__ = ["Request", "RunningRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to be continued. Immutable.

    request_id: chosen by the owner, unique in its scheduler.
    prompt: token ids, at least one.
    seed: of the request's own random stream, 64 bit.
    end_token_ids: drawing one of these ends the output.
    namespace: cached prefixes are shared inside it only.
    deadline: on the owner's clock, in seconds; None = none.
    """

    request_id: int
    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    end_token_ids: frozenset[int] = frozenset()
    namespace: str = ""
    deadline: float | None = None

    def positions_needed(self, max_sequence_length: int) -> int:
        """Most KV positions the request can come to hold.

        The last token of an output is drawn but never computed, so it needs none.
        """
        return len(self.prompt) + self.max_output(max_sequence_length) - 1

    def max_output(self, max_sequence_length: int) -> int:
        """Most tokens it can come to draw, before `max_tokens` or its positions are used up."""
        return min(self.params.max_tokens, max_sequence_length - len(self.prompt))


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request that holds a sequence.

    `num_computed_tokens` is the only record of its progress: everything else
    follows from how far that is behind its length. `reserved_blocks` is what
    its whole sequence can come to hold. `ended`: it ended during a step, its
    KV goes when that step is over. `drafter`: who guesses its next tokens, if
    anybody does.
    """

    request: Request
    seq_id: int
    reserved_blocks: int
    num_computed_tokens: int
    output: list[int] = field(default_factory=list)
    ended: bool = False
    drafter: Drafter | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.request.prompt) + len(self.output)

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens it has, but whose KV is not there yet."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_generating(self) -> bool:
        """Its whole prompt is computed: each step gives it one more token."""
        return self.num_computed_tokens >= len(self.request.prompt)

    def next_tokens(self, count: int) -> tuple[int, ...]:
        """The next `count` tokens to compute."""
        n_prompt = len(self.request.prompt)
        start = self.num_computed_tokens
        stop = start + count
        tail = self.output[max(0, start - n_prompt) : max(0, stop - n_prompt)]
        return self.request.prompt[start:stop] + tuple(tail)

    def draws_after(self, count: int) -> bool:
        """Whether a new token follows the next `count`."""
        return count == self.num_tokens_to_compute
