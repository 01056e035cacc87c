"""`Speculation`: which sequences compute guesses beside their next token, and how many.

A guess takes a row, and one that comes true saves its sequence a row of a later step and the share
of that step that is not rows. With n sequences in a step, and a step that costs as much as k rows
before its first one, a guess is worth its row where it is right more often than n / (n + k).

Looking for guesses is not free either, and where a step takes a fraction of a millisecond it shows.
So who has none that pay is looked for less and less: as often as takes a small share of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from .drafter import LEAST_LONGEST_REST, Drafter, Terms
from .kv_allocator import blocks_for
from .plan import StepPlan
from .request import LiveRequest
from .step_cost import StepCost

__all__ = ["Speculation"]

# Seconds that a step in which somebody is looked for takes longer, and for each of them: after a
# pass over the weights all that a search touches is far from the processor.
_LOOKING, _LOOK = 30e-6, 1.5e-6
_SHARE = 1 / 150  # of the time of steps, that looking in vain may take in the long run
_TOGETHER = 8  # steps: where it does not, those who rest long are looked for in the same ones
_HOPELESS = 0.9  # a guess that must be right so often is not worth looking for
_READ_IN_A_STEP = 2048  # tokens of prompts: a fraction of a millisecond


class Speculation:
    """Makes the drafts of each step, and counts what comes of them.

    max_draft_tokens: most tokens of one sequence's draft; 0: there are none.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self._max_draft_tokens = max_draft_tokens
        self._cost = StepCost()
        self._n_steps = 0
        self._looks = False  # somebody's turn to be looked for has come
        self._unread: deque[Drafter] = deque()  # who has not read the whole prompt
        self._step: tuple[StepPlan, float] | None = None
        self.proposed_tokens = self.accepted_tokens = 0

    def begin(self, running: LiveRequest) -> None:
        """The request was admitted."""
        request = running.request
        if self._max_draft_tokens and running.max_output - len(running.output) > 1:
            running.drafter = Drafter(request.prompt, request.end_token_ids, request.output)
            self._unread.append(running.drafter)

    def drafts(
        self, generating: Sequence[LiveRequest], n_rows: int, n_blocks: int, block_size: int
    ) -> dict[int, tuple[int, ...]]:
        """By seq_id, the guesses that shall have rows in the next step: `n_rows` at most, in all.

        They take at most `n_blocks` KV blocks beside those of the rows before them. A draft is
        shorter than what its request may yet draw, so that it needs no position past the last.
        """
        drafts: dict[int, tuple[int, ...]] = {}
        if not self._max_draft_tokens:
            return drafts
        if self._unread:
            self._read_prompts()
        self._n_steps = step = self._n_steps + 1
        for owner in generating:
            if owner.next_look <= step:
                break
        else:  # most steps of a text that does not repeat itself
            self._looks = False
            return drafts
        self._looks = True
        terms = self._terms(len(generating))
        for owner in generating:
            if owner.next_look > step:
                continue
            drafter = owner.drafter
            if drafter is None or terms.row > _HOPELESS:
                owner.next_look = self._after(terms.longest_rest, terms)
                continue
            may_draw = owner.max_output - len(owner.output)
            room = -(owner.num_computed_tokens + 1) % block_size  # positions left in its last block
            n_most = min(self._max_draft_tokens, may_draw - 1, n_rows, room + n_blocks * block_size)
            if n_most <= 0:
                continue
            draft = drafter.draft(owner.output, n_most, terms)
            owner.next_look = self._after(drafter.rest, terms)
            if draft:
                drafts[owner.seq_id] = draft
                n_rows -= len(draft)
                n_blocks -= blocks_for(max(0, len(draft) - room), block_size)
        return drafts

    def judge(self, n_proposed: int, n_accepted: int) -> None:
        """Of so many guesses in a step so many were right."""
        self.proposed_tokens += n_proposed
        self.accepted_tokens += n_accepted

    def step_begins(self, plan: StepPlan, now: float) -> None:
        """The plan goes to the engine."""
        self._step = (plan, now) if self._looks else None

    def step_ends(self, now: float) -> None:
        """It is done. What it took tells what rows cost; those of prompts cost less in company.

        Steps in which nobody was looked for are all alike: they are not timed.
        """
        if self._step is not None:
            plan, began = self._step
            if not plan.prefill_rows:
                self._cost.note(plan.decode_rows + plan.draft_rows, now - began)

    def _terms(self, n: int) -> Terms:
        """Those of a step with so many sequences."""
        empty, row = self._cost.rows_of_an_empty_step, self._cost.row
        worth = n / (n + empty)
        if not row:
            return Terms(worth, worth, LEAST_LONGEST_REST)
        look = _LOOKING + n * _LOOK
        affordable = int(look / (_SHARE * row * (n + empty)))
        return Terms(worth, worth * (1.0 + look / (n * row)), max(LEAST_LONGEST_REST, affordable))

    def _after(self, rest: int, terms: Terms) -> int:
        """The step that comes after so many others."""
        step = self._n_steps + 1 + rest
        if rest >= _TOGETHER and terms.longest_rest > LEAST_LONGEST_REST:
            step -= step % _TOGETHER
        return step

    def _read_prompts(self) -> None:
        left = _READ_IN_A_STEP
        while self._unread and left:
            drafter = self._unread[0]
            left -= drafter.read(left)
            if drafter.has_read:
                self._unread.popleft()
