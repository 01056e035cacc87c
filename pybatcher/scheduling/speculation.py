"""`Speculation`: which sequences compute guesses beside their next token, and how many.

A guess takes a row, and one that comes true saves its sequence a row of a later step and the share
of that step that is not rows. With n sequences in a step, and a step that costs as much as k rows
before its first one, a guess is worth its row where it is right more often than n / (n + k).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from .drafter import Drafter
from .kv_book import blocks_for
from .plan import StepPlan
from .request import LiveRequest
from .step_cost import StepCost

__all__ = ["Speculation"]

_HOPELESS = 0.9  # a guess that must be right so often is not worth looking for
_READ_IN_A_STEP = 2048  # tokens of prompts: a fraction of a millisecond


class Speculation:
    """Makes the drafts of each step, and counts what comes of them.

    max_draft_tokens: most tokens of one sequence's draft; 0: there are none.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self._max_draft_tokens = max_draft_tokens
        self._cost = StepCost()
        self._unread: deque[Drafter] = deque()  # who has not read the whole prompt
        self._step: tuple[StepPlan, float] | None = None
        self.proposed_tokens = self.accepted_tokens = 0

    def begin(self, running: LiveRequest) -> None:
        """The request was admitted."""
        if self._max_draft_tokens:
            request = running.request
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
        worth = len(generating) / (len(generating) + self._cost.rows_of_an_empty_step)
        if worth > _HOPELESS:
            return drafts
        for owner in generating:
            drafter = owner.drafter
            if drafter is None:
                continue
            if drafter.rest:
                drafter.rest -= 1
                continue
            may_draw = owner.max_output - len(owner.output)
            room = -(owner.num_computed_tokens + 1) % block_size  # positions left in its last block
            n_most = min(self._max_draft_tokens, may_draw - 1, n_rows, room + n_blocks * block_size)
            if n_most > 0 and (draft := drafter.draft(owner.output, n_most, worth)):
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
        self._step = (plan, now)

    def step_ends(self, now: float) -> None:
        """It is done. What it took tells what rows cost; those of prompts cost less in company."""
        if self._step is not None and self._max_draft_tokens:
            plan, began = self._step
            if not plan.prefill_rows:
                self._cost.note(plan.decode_rows + plan.draft_rows, now - began)

    def _read_prompts(self) -> None:
        left = _READ_IN_A_STEP
        while self._unread and left:
            drafter = self._unread[0]
            left -= drafter.read(left)
            if drafter.has_read:
                self._unread.popleft()
