"""`Speculation`: which sequences compute guesses beside their next token, and how many.

A row costs a step some time; a step costs time even before its first row (the weights are read
once, whatever the rows). A guess that comes true saves its sequence its share of one step. With
n sequences in a step, and a step that costs as much as k rows before its first one, a guess is
worth its row where it is right more often than n / (n + k).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .drafter import Drafter
from .plan import SampledToken
from .request import RunningRequest

__all__ = ["Speculation"]

_ROWS_OF_AN_EMPTY_STEP = 16  # k, above, as bench/speculation.py measures it
_INDEXED_IN_A_STEP = 2048  # tokens of prompts: a fraction of a millisecond


class Speculation:
    """Makes the drafts of each step, and counts what comes of them.

    max_draft_tokens: most tokens of one sequence's draft; 0: there are none.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self._max_draft_tokens = max_draft_tokens
        self.proposed_tokens = self.accepted_tokens = 0

    def begin(self, running: RunningRequest) -> None:
        """The request was admitted."""
        if self._max_draft_tokens:
            running.drafter = Drafter(running.request.prompt, running.request.end_token_ids)

    def drafts(
        self, running: Collection[RunningRequest], n_rows: int, max_sequence_length: int
    ) -> dict[int, tuple[int, ...]]:
        """By seq_id, the guesses that shall have rows in the next step: `n_rows` at most, in all.

        A draft is shorter than what its request may yet draw. So none needs KV, or
        a position, that the request was not promised.
        """
        if not self._max_draft_tokens:
            return {}
        self._read_prompts(running)
        generating = [owner for owner in running if owner.is_generating]
        worth = len(generating) / (len(generating) + _ROWS_OF_AN_EMPTY_STEP)
        drafts = {}
        for owner in generating:
            may_draw = owner.request.max_output(max_sequence_length) - len(owner.output)
            n_most = min(self._max_draft_tokens, may_draw - 1, n_rows)
            if owner.drafter is not None and n_most > 0:
                drafts[owner.seq_id] = owner.drafter.draft(n_most, worth)
                n_rows -= len(drafts[owner.seq_id])
        return drafts

    def judge(
        self, owner: RunningRequest, tokens: Sequence[SampledToken], n_draft: int, n_accepted: int
    ) -> None:
        """A step drew `tokens`; of `n_draft` guesses in it `n_accepted` were right."""
        self.proposed_tokens += n_draft
        self.accepted_tokens += n_accepted
        if owner.drafter is not None:
            owner.drafter.take([token.token_id for token in tokens])

    def _read_prompts(self, running: Collection[RunningRequest]) -> None:
        left = _INDEXED_IN_A_STEP
        for owner in running:
            if owner.drafter is not None:
                left -= owner.drafter.read(left)
