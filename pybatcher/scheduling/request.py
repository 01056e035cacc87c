"""`Request`: what a caller asked for. `LiveRequest`: how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ..params import SamplingParams
from .drafter import Drafter
from .plan import Pooling
from .prefix import SharedPrefix

__all__ = ["Leader", "LiveRequest", "Request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to be continued, or to be asked about. Immutable.

    request_id: chosen by the owner, unique in its scheduler.
    prompt: token ids, at least one.
    seed: of the request's own random stream, 64 bit.
    end_token_ids: drawing one of these ends the output.
    namespace: cached prefixes are shared inside it only, and namespaces of a tenant take turns.
    tenant: on whose behalf it is asked. Tenants take turns, and share cached prefixes.
    priority: the lower, the sooner it is served.
    deadline: on the owner's clock, in seconds; None = none.
    targets, pooling: as of a `StepEntry`, over the whole prompt. With either, nothing is
        drawn: the request ends when its prompt is computed.
    output: tokens that were drawn for it already, none of which has ended it
        (`finish_reason`). It goes on after them as if it had drawn them here.
    """

    request_id: int
    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    end_token_ids: frozenset[int] = frozenset()
    namespace: str = ""
    priority: int = 0
    deadline: float | None = None
    targets: tuple[int, ...] = ()
    pooling: Pooling | None = None
    output: tuple[int, ...] = ()
    tenant: str = ""

    @property
    def draws(self) -> bool:
        """It is to be continued."""
        return not self.targets and self.pooling is None

    @property
    def is_whole(self) -> bool:
        """All of its prompt has to be in one step."""
        return self.pooling == "mean"

    def positions_needed(self, max_sequence_length: int) -> int:
        """Most KV positions the request can come to hold.

        The last token of an output is drawn but never computed, so it needs none.
        """
        return len(self.prompt) + self.max_output(max_sequence_length) - 1

    def max_output(self, max_sequence_length: int) -> int:
        """Most tokens its output can come to have, before `max_tokens` or positions are used up.

        Those it comes with count. One that draws none counts as one that ends with its first.
        """
        if not self.draws:
            return 1
        return min(self.params.max_tokens, max_sequence_length - len(self.prompt))

    def finish_reason(
        self, token_id: int, n_output: int, max_output: int
    ) -> Literal["stop", "length"] | None:
        """Why its output of `n_output` tokens ends with this last one; None: it goes on."""
        if token_id in self.end_token_ids:
            return "stop"
        return "length" if n_output >= max_output else None


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request from its submission to its end.

    `num_computed_tokens` is the only record of its progress: everything else
    follows from how far that is behind its length. Who has been preempted, or
    outlived its engine, has its output and no KV; so does a newcomer that comes with one.

    submitted: when, on the owner's clock. seniority: a time; of two requests of a
        namespace the one with the earlier goes first. number: of its submission.
    max_output: most tokens its output can come to have.
    seq_id: its sequence while it runs; -1: it has none.
    was_admitted: it has run before.
    num_lost_tokens: so many had been computed when it last lost its KV, or, of a newcomer
        with output, when that was drawn elsewhere.
    outlived_engine: and it lost it to a restart of the engine.
    leader, num_led_tokens: so many tokens of another's KV will be copied when they
        are there, and until then nothing of it is computed.
    ended: nothing more comes of it; its KV goes when the step that may compute it is over.
    next_look: the step of `Speculation` from which on guesses are worth looking for.
    logprobs: of its first targets, as far as they are known; preemption takes none away.
    suspect_length: it was in a step that failed, and is watched until it is longer
        than this; -1: it is not.
    """

    request: Request
    submitted: float
    seniority: float
    number: int
    max_output: int
    output: list[int] = field(default_factory=list)
    seq_id: int = -1
    num_computed_tokens: int = 0
    was_admitted: bool = False
    num_lost_tokens: int = 0
    outlived_engine: bool = False
    num_preemptions: int = 0
    leader: Leader | None = None
    num_led_tokens: int = 0
    ended: bool = False
    suspect_length: int = -1
    drafter: Drafter | None = None
    next_look: int = 0
    logprobs: list[float] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far."""
        return len(self.request.prompt) + len(self.output)

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens it has, but whose KV is not there yet."""
        return len(self.request.prompt) + len(self.output) - self.num_computed_tokens

    @property
    def is_generating(self) -> bool:
        """All but its last token is computed: each step gives it one more."""
        return bool(self.output) and self.num_tokens_to_compute == 1

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and output so far."""
        return (*self.request.prompt, *self.output) if self.output else self.request.prompt

    def promised_tokens(self, output_reserve: int) -> int:
        """The length for which admission wants room: it is not longer yet."""
        left = min(self.max_output - len(self.output), output_reserve)
        return self.num_tokens + max(left - 1, 0)

    def next_tokens(self, count: int) -> tuple[int, ...]:
        """The next `count` tokens to compute."""
        n_prompt = len(self.request.prompt)
        start = self.num_computed_tokens
        stop = start + count
        if start >= n_prompt:
            return tuple(self.output[start - n_prompt : stop - n_prompt])
        return self.request.prompt[start:stop] + tuple(self.output[: max(0, stop - n_prompt)])

    def draws_after(self, count: int) -> bool:
        """Whether a new token follows the next `count`."""
        return count == self.num_tokens_to_compute and self.request.draws

    @property
    def shareable_tokens(self) -> tuple[int, ...]:
        """All but the last of these may come from elsewhere: rows it needs are its own to compute.

        It needs the last one, or those from its first unknown target on; for a mean, all.
        """
        request = self.request
        if request.draws:
            return self.tokens
        if request.is_whole:
            return request.prompt[:1]
        n_unknown = len(request.targets) - len(self.logprobs)
        return request.prompt[: len(request.prompt) - max(n_unknown, 1) + 1]

    def targets_after(self, count: int) -> tuple[int, ...]:
        """Its targets that come after the next `count` tokens' rows, but for known ones."""
        targets = self.request.targets
        stop = self.num_computed_tokens + count - (len(self.request.prompt) - len(targets))
        return targets[len(self.logprobs) : max(stop, 0)]

    def pooling_after(self, count: int) -> Pooling | None:
        """What is to be pooled in the entry of the next `count` tokens: the last one of all."""
        return self.request.pooling if count == self.num_tokens_to_compute else None

    def lose_kv(self) -> None:
        """Its sequence is gone; what had been computed has to be again."""
        self.num_lost_tokens = max(self.num_lost_tokens, self.num_computed_tokens)
        self.num_computed_tokens = 0
        self.seq_id = -1
        self.leader = None


Leader = LiveRequest | SharedPrefix
"""Whose KV a request may wait for instead of computing the same."""
