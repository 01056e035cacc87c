"""`Request`: one request as its caller submits it. `LiveRequest`: its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..params import SamplingParams
from .drafter import Drafter
from .images import PromptImages
from .plan import Pooling, TokenMatcher, TopLogprobs
from .prefix import SharedPrefix

__all__ = ["Leader", "LiveRequest", "Request"]


_DEFAULTS = SamplingParams()  # immutable, so that all requests that sample nothing share it


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to be continued, scored or embedded. Immutable.

    request_id: chosen by the owner, unique in its scheduler.
    prompt: token ids, at least one.
    seed: of the request's own random stream, 64 bit.
    end_token_ids: each of these ends the output if it is sampled.
    namespace: cached prefixes are shared inside it only, and namespaces of a tenant take turns.
    tenant: the client that the request belongs to. Tenants take turns, and share cached prefixes.
        Text after a line feed names a part of the client, and the parts take turns inside it.
    priority: a lower value is served earlier.
    deadline: on the owner's clock, in seconds; None = none.
    targets, n_top, pooling: those of `StepEntry`, over the whole prompt. With targets or pooling,
        no token is sampled: the request ends when its prompt is computed.
    takes_whole: the model computes a text as a whole, because its attention is not causal.
    output: tokens that were sampled for it elsewhere, none of which ends it (`finish_reason`).
        The request continues after them as if they had been sampled here.
    trace_headers: for observers of its end.
    matcher: the state of a structured output at the end of `output`; None: any text. It belongs to
        this request and follows the sampled tokens.
    where: the name of the prompt in errors.
    images: the images of the prompt, whose tokens have ids from `FIRST_IMAGE_ID` on; None without.
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
    where: str = "prompt"
    images: PromptImages | None = None

    @property
    def n_image_tokens(self) -> int:
        """Number of tokens of the prompt that stand for images."""
        return 0 if self.images is None else self.images.n_tokens

    @property
    def samples(self) -> bool:
        """True for a prompt to be continued: neither scored nor embedded."""
        return not self.targets and self.pooling is None

    @property
    def is_whole(self) -> bool:
        """True if the prompt cannot be chunked: all rows are pooled, or attention is not causal."""
        return self.takes_whole or self.pooling in ("mean", "cls")

    def positions_needed(self, max_sequence_length: int) -> int:
        """Return the largest number of KV positions that the request can hold.

        The last token of an output is sampled but never computed, so it needs no position.
        """
        return len(self.prompt) + self.max_output(max_sequence_length) - 1

    def max_output(self, max_sequence_length: int) -> int:
        """Return the largest length of its output: by `max_tokens` or by the positions.

        Tokens that were sampled elsewhere count. A request that samples none counts as one token.
        """
        if not self.samples:
            return 1
        return min(self.params.max_tokens, max_sequence_length - len(self.prompt))

    def finish_reason(
        self, token_id: int, n_output: int, max_output: int
    ) -> Literal["stop", "length"] | None:
        """Return why an output of `n_output` tokens ends with this last one; None: it does not."""
        if token_id in self.end_token_ids:
            return "stop"
        return "length" if n_output >= max_output else None


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request from its submission to its end.

    `num_computed_tokens` is the only record of its progress: everything else follows from its
    distance to the length. A request that was preempted, or lives on after a restart of the engine,
    has its output and no KV; so has a newcomer whose output was begun elsewhere.

    submitted: a time on the owner's clock. seniority: a time; inside a namespace the request with
        the earliest is first. number: the number of its submission.
    max_output: largest length of its output.
    num_queued_tokens: its length when it was queued as a newcomer.
    seq_id: the sequence while the request runs; -1: it has none.
    was_admitted: True once the request has run.
    num_lost_tokens: number of computed tokens when it last lost its KV; for a newcomer with output,
        when that output was sampled elsewhere.
    outlived_engine: True if it lost its KV to a restart of the engine.
    leader, num_led_tokens: another owner of KV, and how many of its first tokens will be copied
        once they are computed; until then no token of this request is computed.
    ended: True once no further event follows; its KV is freed after the step that may compute it.
    next_search: the first step of `Speculation` in which a search for a draft pays.
    forced: draft tokens, of the text that the grammar of its output demands next.
    logprobs, top_logprobs: those of its first targets that are known; preemption keeps them.
    poison_length: -1, or for a request of a failed step: it is a candidate of `PoisonRequests`
        until it is longer than this.
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
        """True if all tokens but the last sampled one are computed: each step samples one more."""
        return bool(self.output) and self.num_tokens_to_compute == 1

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and output so far."""
        return (*self.request.prompt, *self.output) if self.output else self.request.prompt

    def promised_tokens(self, output_reserve: int) -> int:
        """Return the length for which admission needs room: with some output that is to come."""
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

    def samples_after(self, count: int) -> bool:
        """True if a token is sampled after the next `count`."""
        return count == self.num_tokens_to_compute and self.request.samples

    @property
    def shareable_tokens(self) -> tuple[int, ...]:
        """Return the tokens whose KV, except for the last one's, may come from other sequences.

        Rows whose outputs are needed have to be computed: the last one, those from the first
        unknown target on, and all rows of a prompt that is not chunked.
        """
        request = self.request
        if request.samples:
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
        """Forget the sequence: its computed tokens have to be computed again."""
        self.num_lost_tokens = max(self.num_lost_tokens, self.num_computed_tokens)
        self.num_computed_tokens = 0
        self.seq_id = -1
        self.leader = None


Leader = LiveRequest | SharedPrefix
"""An owner of KV that a request may wait for instead of computing the same tokens."""
