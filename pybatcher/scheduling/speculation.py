"""`Speculation`: chooses the sequences that compute draft tokens, and their drafts.

If the grammar of a structured output demands a text next, the tokens of that text are the draft:
nothing is searched, and usually all of them are accepted.

Any other draft token takes a row. An accepted one saves its sequence a row of a later step and the
share of that step that is not rows. With n sequences in a step, and a fixed cost of a step that
equals k rows, a draft token is worth its row if its chance of acceptance is above n / (n + k).

The search for drafts costs time too, which matters if a step takes a fraction of a millisecond. A
sequence whose drafts do not pay is therefore searched less and less often, so that searches take a
small share of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from .containment import WorkFor
from .drafter import LEAST_LONGEST_REST, Drafter, Terms
from .kv_allocator import blocks_for
from .plan import StepPlan
from .request import LiveRequest
from .step_time import StepCost

__all__ = ["Speculation"]

# Seconds that searches add to a step, and that each searched sequence adds: after a pass over the
# weights, the data of a search is no longer in the CPU's caches.
_SEARCHING, _SEARCH = 30e-6, 1.5e-6
_SHARE = (
    1 / 150
)  # share of the time of steps that searches without success may take in the long run
_TOGETHER = 8  # steps: sequences with long rests are searched in the same one of this many steps
_HOPELESS = 0.9  # if drafts must be accepted this often, no search pays
_READ_IN_A_STEP = 2048  # tokens of prompts: a fraction of a millisecond


class Speculation:
    """Makes the drafts of each step, and counts their tokens and the accepted ones.

    max_draft_tokens: most tokens of one sequence's draft; 0 turns speculation off.
    """

    def __init__(self, max_draft_tokens: int) -> None:
        self._max_draft_tokens = max_draft_tokens
        self._cost = StepCost()
        self._n_steps = 0
        self._searches = False  # in this step at least one sequence is searched
        self._unread: deque[LiveRequest] = (
            deque()
        )  # requests whose drafters have not read the whole prompt
        self._step: tuple[StepPlan, float] | None = None
        self.draft_tokens = self.accepted_tokens = 0

    def begin(self, running: LiveRequest) -> None:
        """Give an admitted request its drafter, if it may sample more than one token."""
        request = running.request
        if self._max_draft_tokens and running.max_output - len(running.output) > 1:
            running.drafter = Drafter(request.prompt, request.end_token_ids, request.output)
            self._unread.append(running)

    def drafts(
        self, generating: Sequence[LiveRequest], n_rows: int, n_blocks: int, block_size: int
    ) -> dict[int, tuple[int, ...]]:
        """Return the drafts of the next step by seq_id: at most `n_rows` tokens in all.

        They take at most `n_blocks` KV blocks beside those of the rows before them. A draft is
        shorter than the rest of its request's output, so that it needs no position past the last.
        """
        drafts: dict[int, tuple[int, ...]] = {}
        if not self._max_draft_tokens:
            return drafts
        if self._unread:
            self._read_prompts()
        self._n_steps = step = self._n_steps + 1
        for owner in generating:
            if owner.next_search <= step or owner.forced:
                break
        else:  # the case of most steps if no text repeats itself
            self._searches = False
            return drafts
        self._searches = True
        terms = self._terms(len(generating))
        with WorkFor("draft its next tokens") as work:
            for work.owner in generating:
                owner = work.owner
                forced = owner.forced
                if owner.next_search > step and not forced:
                    continue
                drafter = owner.drafter
                if drafter is None or (terms.row > _HOPELESS and not forced):
                    owner.next_search = self._after(terms.longest_rest, terms)
                    continue
                may_sample = owner.max_output - len(owner.output)
                room = -(owner.num_computed_tokens + 1) % block_size  # left in its last block
                n_most = min(may_sample - 1, n_rows, room + n_blocks * block_size)
                n_most = min(n_most, self._max_draft_tokens)
                if n_most <= 0:
                    continue
                if forced:
                    draft = drafter.before_end(forced[:n_most])
                else:
                    draft = drafter.draft(owner.output, n_most, terms)
                    owner.next_search = self._after(drafter.rest, terms)
                if draft:
                    drafts[owner.seq_id] = draft
                    n_rows -= len(draft)
                    n_blocks -= blocks_for(max(0, len(draft) - room), block_size)
        return drafts

    def count(self, n_draft: int, n_accepted: int) -> None:
        """Count the draft tokens of one sequence in a step, and the accepted ones among them."""
        self.draft_tokens += n_draft
        self.accepted_tokens += n_accepted

    def step_begins(self, plan: StepPlan, now: float) -> None:
        """Note when the plan goes to the engine."""
        self._step = (plan, now) if self._searches else None

    def step_ends(self, now: float) -> None:
        """Add a step's seconds to the estimate of the cost of a row.

        Only steps without prefill and images count, because their rows all cost the same, and only
        those with a search, because all others are alike.
        """
        if self._step is not None:
            plan, began = self._step
            if not plan.prefill_rows and plan.encode is None:
                self._cost.note(plan.decode_rows + plan.draft_rows, now - began)

    def _terms(self, n: int) -> Terms:
        """Return the thresholds for drafts in a step with `n` sequences."""
        empty, row = self._cost.rows_of_an_empty_step, self._cost.row
        worth = n / (n + empty)
        if not row:
            return Terms(worth, worth, LEAST_LONGEST_REST)
        search = _SEARCHING + n * _SEARCH
        affordable = int(search / (_SHARE * row * (n + empty)))
        return Terms(worth, worth * (1.0 + search / (n * row)), max(LEAST_LONGEST_REST, affordable))

    def _after(self, rest: int, terms: Terms) -> int:
        """Return the number of the step after `rest` other steps."""
        step = self._n_steps + 1 + rest
        if rest >= _TOGETHER and terms.longest_rest > LEAST_LONGEST_REST:
            step -= step % _TOGETHER
        return step

    def _read_prompts(self) -> None:
        left = _READ_IN_A_STEP
        while self._unread and left:
            live = self._unread[0]
            drafter = live.drafter
            with WorkFor("read its prompt for drafts", live):
                if drafter is not None and not live.ended:
                    left -= drafter.read(left)
            if drafter is None or live.ended or drafter.has_read:
                self._unread.popleft()
