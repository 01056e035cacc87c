"""`Request`: one request as its caller wants it. `LiveRequest`: its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..params import SamplingParams
from .drafter import Drafter
from .plan import Pooling, TokenMatcher, TopLogprobs
from .prefix import SharedPrefix

__all__ = ["Leader", "LiveRequest", "Request"]


_DEFAULTS = SamplingParams()  # immutable, so all requests that draw nothing share it


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to be continued, scored or embedded. Immutable.

    request_id: chosen by the owner, unique in its scheduler.
    prompt: token ids, at least one.
    seed: of the request's own random stream, 64 bit.
    end_token_ids: drawing one of these ends the output.
    namespace: cached prefixes are shared inside it only, and namespaces of a tenant take turns.
    tenant: on whose behalf it is asked. Tenants take turns, and share cached prefixes.
    priority: the lower, the sooner it is served.
    deadline: on the owner's clock, in seconds; None = none.
    targets, n_top, pooling: as of a `StepEntry`, over the whole prompt. With targets or pooling,
        no token is drawn: the request ends when its prompt is computed.
    takes_whole: the model takes a text as a whole: its attention sees what follows.
    output: tokens that were drawn for it elsewhere, none of which has ended it
        (`finish_reason`). It goes on after them as if they had been drawn here.
    trace_headers: for whoever observes its end.
    matcher: of the form that its output must have, at the end of `output`; None: any text. The
        request's own: it follows the tokens that are drawn.
    """

    request_id: int
    prompt: tuple[int, ...]
    params: SamplingParams = _DEFAULTS
    seed: int = 0
    end_token_ids: frozenset[int] = frozenset()
    namespace: str = ""
    priority: int = 0
    deadline: float | None = None
    targets: tuple[int, ...] = ()
    pooling: Pooling | None = None
    output: tuple[int, ...] = ()
    tenant: str = ""
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    matcher: TokenMatcher | None = None
    n_top: int = 0
    takes_whole: bool = False

    @property
    def draws(self) -> bool:
        """True for a prompt to be continued: neither scored nor embedded."""
        return not self.targets and self.pooling is None

    @property
    def is_whole(self) -> bool:
        """True where the prompt cannot be chunked: more than its last row is pooled, or read."""
        return self.takes_whole or self.pooling in ("mean", "cls")

    def positions_needed(self, max_sequence_length: int) -> int:
        """Return the most KV positions that the request can come to hold.

        The last token of an output is drawn but never computed, so it needs none.
        """
        return len(self.prompt) + self.max_output(max_sequence_length) - 1

    def max_output(self, max_sequence_length: int) -> int:
        """Return the most tokens that its output can come to have: `max_tokens`, or positions.

        Tokens drawn elsewhere count. A request that draws none counts as one that draws one.
        """
        if not self.draws:
            return 1
        return min(self.params.max_tokens, max_sequence_length - len(self.prompt))

    def finish_reason(
        self, token_id: int, n_output: int, max_output: int
    ) -> Literal["stop", "length"] | None:
        """Return why an output of `n_output` tokens ends with this last one; None: it goes on."""
        if token_id in self.end_token_ids:
            return "stop"
        return "length" if n_output >= max_output else None


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request from its submission to its end.

    `num_computed_tokens` is the only record of its progress: everything else follows from how far
    that is behind its length. A request that was preempted, or outlived its engine, has its output
    and no KV; so has a newcomer whose output was begun elsewhere.

    submitted: when, on the owner's clock. seniority: a time; of two requests of a namespace the
        one with the earlier goes first. number: of its submission.
    max_output: most tokens that its output can come to have.
    num_queued_tokens: tokens it had when it was queued as a newcomer.
    seq_id: the sequence while the request runs; -1: it has none.
    was_admitted: True once the request has run.
    num_lost_tokens: tokens that had been computed when it last lost its KV, or, of a newcomer
        with output, when that output was drawn elsewhere.
    outlived_engine: True if a restart of the engine took its KV.
    leader, num_led_tokens: another owner of KV, and how many of its first tokens will be copied
        once they are computed; until then no token of this request is computed.
    ended: True once no further event comes; its KV is freed after the step that may compute it.
    next_search: the step of `Speculation` from which on a search for a draft is worth it.
    forced: tokens of the text that its form has come next: a draft.
    logprobs, top_logprobs: of its first targets, as far as they are known; preemption takes none
        away.
    poison_length: it was in a step that failed, and is a candidate of `PoisonRequests` until it is
        longer than this; -1: it is none.
    """

    request: Request
    submitted: float
    seniority: float
    number: int
    max_output: int
    output: list[int] = field(default_factory=list)
    seq_id: int = -1
    num_queued_tokens: int = 0
    num_computed_tokens: int = 0
    was_admitted: bool = False
    num_lost_tokens: int = 0
    outlived_engine: bool = False
    num_preemptions: int = 0
    leader: Leader | None = None
    num_led_tokens: int = 0
    ended: bool = False
    poison_length: int = -1
    drafter: Drafter | None = None
    next_search: int = 0
    forced: tuple[int, ...] = ()
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the prompt and the output so far."""
        return len(self.request.prompt) + len(self.output)

    @property
    def num_tokens_to_compute(self) -> int:
        """Number of tokens without KV."""
        return len(self.request.prompt) + len(self.output) - self.num_computed_tokens

    @property
    def is_generating(self) -> bool:
        """True when all tokens but the last drawn one are computed: each step draws one more."""
        return bool(self.output) and self.num_tokens_to_compute == 1

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and output so far."""
        return (*self.request.prompt, *self.output) if self.output else self.request.prompt

    def promised_tokens(self, output_reserve: int) -> int:
        """Return the length for which admission wants room: the output so far and some to come."""
        left = min(self.max_output - len(self.output), output_reserve)
        return self.num_tokens + max(left - 1, 0)

    def next_tokens(self, count: int) -> tuple[int, ...]:
        """Return the next `count` tokens to compute."""
        n_prompt = len(self.request.prompt)
        start = self.num_computed_tokens
        stop = start + count
        if start >= n_prompt:
            return tuple(self.output[start - n_prompt : stop - n_prompt])
        return self.request.prompt[start:stop] + tuple(self.output[: max(0, stop - n_prompt)])

    def draws_after(self, count: int) -> bool:
        """True if a new token is drawn after the next `count`."""
        return count == self.num_tokens_to_compute and self.request.draws

    @property
    def shareable_tokens(self) -> tuple[int, ...]:
        """Return the tokens whose KV, but for the last one's, may come from other sequences.

        Rows that the step answers from have to be computed: the last one, those from the first
        unknown target on, and all of a prompt that is not chunked.
        """
        request = self.request
        if request.draws:
            return self.tokens
        if request.is_whole:
            return request.prompt[:1]
        n_unknown = len(request.targets) - len(self.logprobs)
        return request.prompt[: len(request.prompt) - max(n_unknown, 1) + 1]

    def targets_after(self, count: int) -> tuple[int, ...]:
        """Return the targets of the next `count` tokens' rows, without those already scored."""
        targets = self.request.targets
        stop = self.num_computed_tokens + count - (len(self.request.prompt) - len(targets))
        return targets[len(self.logprobs) : max(stop, 0)]

    def pooling_after(self, count: int) -> Pooling | None:
        """Return the pooling of the entry of the next `count` tokens: only the last entry pools."""
        return self.request.pooling if count == self.num_tokens_to_compute else None

    def lose_kv(self) -> None:
        """Forget the sequence: what had been computed has to be computed again."""
        self.num_lost_tokens = max(self.num_lost_tokens, self.num_computed_tokens)
        self.num_computed_tokens = 0
        self.seq_id = -1
        self.leader = None


Leader = LiveRequest | SharedPrefix
"""An owner of KV that a request may wait for instead of computing the same."""
