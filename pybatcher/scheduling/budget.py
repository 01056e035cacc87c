"""`StepBudget`: divides the prefill rows of a step among prompts."""

from __future__ import annotations

from ..params.config import SchedulerConfig
from .step_time import StepLoad, StepTime

__all__ = ["LEAST_CHUNK", "StepBudget", "long_prefill_threshold"]

LEAST_CHUNK = 16
"""Fewest prefill rows of a step with decode rows, so that no `itl_target` stops prefill."""

_LONG_PROMPT = 0.04  # share of the longest sequence, if several prompts may be partially computed


def long_prefill_threshold(config: SchedulerConfig, max_sequence_length: int) -> int:
    """Return the most tokens that one request prefills in a step; 0: no cap."""
    threshold = config.long_prefill_token_threshold
    if threshold == 0 and config.max_num_partial_prefills > 1:
        threshold = int(max_sequence_length * _LONG_PROMPT)
    return threshold


class StepBudget:
    """The prefill rows of one step, and its seconds if there is a target.

    Created in each step after its decode rows are scheduled. If several prompts may be partially
    computed, each gets its share first, and the remaining rows go to the prompts with the fewest
    tokens left. Short prompts overtake a long one this way, and the long one still advances.

    load: the load of the decode rows; `take` adds the rows that it grants.
    step_time: None if no limit in seconds is configured.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        threshold: int,
        load: StepLoad,
        step_time: StepTime | None,
    ) -> None:
        self._threshold = threshold
        self._step_time = step_time
        self._n_batch = config.n_batch
        self.load = load
        self.rows = config.n_batch - load.decode_rows
        self._free_rows = self.rows
        self._seconds = config.itl_target if load.decode_rows else None
        if load.decode_rows and config.max_prefill_tokens:
            self.rows = min(self.rows, config.max_prefill_tokens)
        if config.dynamic_chunking and step_time is not None:
            self._limit_to_time_of_a_full_step(step_time)
        self._share = self.rows
        if config.max_num_partial_prefills > 1:
            self._share = -(-self._affordable(0, self.rows) // config.max_num_partial_prefills)

    def offer(self, length: int, wanted: int, *, had: int = 0) -> int:
        """Return how many rows a prompt may have now.

        length: tokens of the prompt that are computed. wanted: tokens that are left.
        had: rows of the prompt in this step already; above 0, the share is no limit.
        """
        rows = min(wanted, self.rows) if had else min(wanted, self.rows, self._share)
        if self._threshold:
            rows = min(rows, self._threshold - had)
        return max(self._affordable(length, rows), 0)

    def offer_whole(self, wanted: int) -> int:
        """Return `wanted` if the step has that many free rows, else 0, for an unchunked prompt.

        Only the rows of the step are a limit: under a cap, or a target of seconds, such a prompt
        might never be computed.
        """
        return wanted if wanted <= self._free_rows else 0

    def take(self, length: int, rows: int) -> None:
        """Take `rows` out of the budget and add them to its load."""
        self.rows -= rows
        self._free_rows -= rows
        self.load.add_prefill(length, rows)

    def _affordable(self, length: int, rows: int) -> int:
        """Return how many of `rows` keep the step within its limit in seconds, if it has one."""
        if self._step_time is not None and self._seconds is not None and rows > 0:
            within = self._step_time.prefill_rows_within(self._seconds, self.load, length, rows)
            if within < rows:
                rows = max(within, min(rows, LEAST_CHUNK - self.load.prefill_rows))
        return rows

    def _limit_to_time_of_a_full_step(self, step_time: StepTime) -> None:
        """Limit the step to the seconds of a step with `n_batch` rows at the start of a prompt."""
        full = StepLoad()
        full.add_prefill(0, self._n_batch)
        seconds = step_time.seconds(full)
        if seconds > 0.0 and step_time.most_prefill_rows >= self._n_batch:
            self._seconds = min(self._seconds or seconds, seconds)
