"""`BatchBuilder`: who has rows in the next step, and how many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..config import SchedulerConfig
from ..errors import ConfigError, InvalidRequestError, KvCacheFullError, RequestTooLongError
from .admission import Admission
from .budget import StepBudget, long_prefill_threshold
from .events import Admitted, Resumed
from .kv_allocator import KvAllocator, blocks_for
from .preemption import VICTIM_POLICIES
from .prefix import SharedPrefix
from .request import LiveRequest, Request
from .request_table import RequestTable
from .speculation import Speculation
from .step_time import StepLoad, StepTime

__all__ = ["BatchBuilder", "Seats"]

Seats = list[tuple[LiveRequest | SharedPrefix, int]]
"""Whose next tokens are computed, and how many of them; generating requests first."""


class BatchBuilder:
    """Decode rows, then started prompts, oldest first, then who waits, in turn.

    Counts KV blocks on the way: nobody is seated for whose tokens there is no block.
    load: of the step that was seated last; blocks: those that it leaves.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KvAllocator,
        table: RequestTable,
        speculation: Speculation,
        step_time: StepTime | None,
    ) -> None:
        self._config = config
        self._kv = kv
        self._table = table
        self._speculation = speculation
        self._step_time = step_time
        self._admission = Admission(kv, config, table.prefixes)
        self._pick_victim = VICTIM_POLICIES[config.victim_policy]
        self._threshold = long_prefill_threshold(config, kv.max_sequence_length)
        if kv.n_parallel <= config.max_prefixes:
            raise ConfigError(
                f"max_prefixes is {config.max_prefixes} and the engine has {kv.n_parallel} "
                "sequences: none is left for requests; lower max_prefixes, or raise n_parallel"
            )
        self._max_running = min(kv.n_parallel - config.max_prefixes, config.n_batch)
        self._followers: list[LiveRequest] = []
        self._taken_blocks = 0  # by the seats so far
        self.load = StepLoad()

    def check_can_ever_fit(self, request: Request) -> None:
        """Raise RequestTooLongError for what could not even run alone."""
        self._admission.check_can_ever_fit(request)

    @property
    def blocks(self) -> int:
        """Free blocks that the seats so far leave."""
        return self._kv.kv_free_blocks + self._kv.kv_cached_blocks - self._taken_blocks

    # -- the two kinds of steps ---------------------------------------------------------------

    def seats(self) -> tuple[Seats, list[LiveRequest]]:
        """Those of an ordinary step, and who of them is generating."""
        self._start_prefixes()
        generating = self._generating()
        seats: Seats = [(live, 1) for live in generating]
        self.load = StepLoad(decode_rows=len(generating))
        if self._step_time is not None:
            self.load.decode_context = sum(live.num_computed_tokens for live in generating)
        budget = StepBudget(self._config, self._threshold, self.load, self._step_time)
        n_partial = 0
        for behind in self._started_prompts():
            n_partial += self._seat(seats, behind, budget)
        leaders: _Leaders | None = None
        while (live := self._next_in_line()) is not None and budget.offer(0, 1):
            if leaders is None:
                leaders = _Leaders(self._table.running.values(), self._kv.block_size)
            if live.request.is_whole and not budget.offer_whole(live.num_tokens_to_compute):
                break  # no newcomer goes before it, so that its step comes
            if not self._admit(live, leaders.of(live)):
                continue
            left = live.num_tokens_to_compute
            is_partial = (
                not live.request.is_whole and budget.offer(live.num_computed_tokens, left) < left
            )
            if is_partial and n_partial >= self._config.max_num_partial_prefills:
                self._admission.forget(live)
                break
            self._run(live)
            if live.leader is None or self._join(live):
                leaders.add(live)
                n_partial += self._seat(seats, live, budget)
        if self._config.max_num_partial_prefills > 1:
            self._top_up(seats, len(generating), budget)
        if not seats and self._table.running:
            self._seat_by_force(seats, budget)
        return seats, generating

    def seats_of(self, suspect: LiveRequest) -> Seats:
        """Those of a step with nobody else in it; none where that cannot be had."""
        self._start_prefixes()
        seats: Seats = []
        self.load, self._taken_blocks = StepLoad(), 0
        budget = StepBudget(self._config, 0, self.load, None)
        for prefix in self._table.prefixes:
            if prefix.seq_id >= 0 and prefix.num_tokens_to_compute and not seats:
                self._seat(seats, prefix, budget)
        if seats:
            return seats  # it may begin with it
        while suspect.seq_id < 0 and not self._admit(suspect, (), alone=True):
            if suspect.ended or not self._preempt_one(spared=suspect):
                return seats
        if suspect.request.request_id not in self._table.running:
            self._run(suspect)
        if suspect.leader is None or self._join(suspect):
            self._seat(seats, suspect, budget)
            while not seats and self._preempt_one(spared=suspect):
                self._seat(seats, suspect, budget)
        return seats

    def let_followers_join(self) -> None:
        """A step is over: who waited for KV that is there now takes it."""
        self._taken_blocks = 0  # they are taken now
        self._followers = [
            live
            for live in self._followers
            if not live.ended and live.leader is not None and not self._join(live)
        ]

    # -- rows ---------------------------------------------------------------------------------

    def _generating(self) -> list[LiveRequest]:
        """Each of them has a block for its next token: if need be, others give up theirs."""
        block_size, self._taken_blocks = self._kv.block_size, 0
        while True:
            generating = []
            needed = 0
            for live in self._table.running.values():
                computed = live.num_computed_tokens
                if live.output and len(live.request.prompt) + len(live.output) - computed == 1:
                    generating.append(live)
                    needed += computed % block_size == 0
            if needed <= self.blocks:
                self._taken_blocks = needed
                return generating
            if not self._preempt_one():
                (alone,) = generating
                self._table.fail(alone, _no_room(alone))

    def _started_prompts(self) -> Iterator[LiveRequest | SharedPrefix]:
        """Started, but not all computed. Shared prefixes first: others wait for them."""
        yield from (p for p in self._table.prefixes if p.seq_id >= 0 and p.num_tokens_to_compute)
        behind = [live for live in self._table.running.values() if not live.is_generating]
        behind.sort(key=_seniority)
        for live in behind:
            if live.leader is None or self._join(live):
                yield live

    def _seat(self, seats: Seats, owner: LiveRequest | SharedPrefix, budget: StepBudget) -> bool:
        """Give it rows, as far as the step and KV go. True if tokens of it are left over."""
        computed, left = owner.num_computed_tokens, owner.num_tokens_to_compute
        room = self._room_after(computed)
        if isinstance(owner, LiveRequest) and owner.request.is_whole:
            count = budget.offer_whole(left) if left <= room else 0
        else:
            count = min(budget.offer(computed, left), room)
        if count:
            seats.append((owner, count))
            self._take(computed, count, budget)
        return count < left

    def _top_up(self, seats: Seats, n_generating: int, budget: StepBudget) -> None:
        """Each prompt has its share: what rows are left go to whoever is nearest to its end."""
        for left, i in sorted(
            (owner.num_tokens_to_compute - count, i + n_generating)
            for i, (owner, count) in enumerate(seats[n_generating:])
        ):
            owner, count = seats[i]
            computed = owner.num_computed_tokens + count
            more = min(budget.offer(computed, left, had=count), self._room_after(computed))
            if more > 0:
                seats[i] = (owner, count + more)
                self._take(computed, more, budget)

    def _take(self, computed: int, count: int, budget: StepBudget) -> None:
        block_size = self._kv.block_size
        budget.take(computed, count)
        self._taken_blocks += blocks_for(computed + count, block_size)
        self._taken_blocks -= blocks_for(computed, block_size)

    def _room_after(self, computed: int) -> int:
        """Tokens that fit after so many: into the last block of those, and into free ones."""
        block_size = self._kv.block_size
        return -computed % block_size + max(self.blocks, 0) * block_size

    def _seat_by_force(self, seats: Seats, budget: StepBudget) -> None:
        """Prompts are half computed, and none of them has KV to go on: the eldest shall."""
        while not seats and self._preempt_one():
            for behind in self._started_prompts():
                self._seat(seats, behind, budget)

    # -- KV -----------------------------------------------------------------------------------

    def _start_prefixes(self) -> None:
        table = self._table
        if self._admission.start_prefixes(table.running.values(), table.admitted):
            for live in list(self._table.waiting):  # it took KV for good
                try:
                    self._admission.check_can_ever_fit(live.request)
                except RequestTooLongError as error:
                    self._table.fail(live, error)

    def _preempt_one(self, spared: LiveRequest | None = None) -> bool:
        """Let a victim give up its KV; False if there is none.

        The most senior is spared, so that somebody gets to its end whatever the policy.
        """
        holders = [live for live in self._table.running.values() if live.num_computed_tokens]
        if spared is None and holders:
            spared = min(holders, key=_seniority)
        candidates = [live for live in holders if live is not spared]
        if not candidates:
            return False
        self._table.preempt(self._pick_victim(candidates, self._kv))
        return True

    # -- admission ----------------------------------------------------------------------------

    def _next_in_line(self) -> LiveRequest | None:
        """Who may be admitted now; None if nobody waits, or has to go on waiting."""
        table = self._table
        if table.head_must_wait or len(table.running) >= self._max_running:
            return None
        if table.prefixes.waiting and not table.waiting.returned:
            return None  # newcomers would go on taking the KV that a prefix waits for
        return table.waiting.head

    def _admit(
        self, live: LiveRequest, leaders: Iterable[LiveRequest], *, alone: bool = False
    ) -> bool:
        """Give it a sequence, if it fits; refuse what the engine does not take."""
        running = self._table.running
        try:
            fits = self._admission.admit(
                live, running.values(), leaders, alone=alone or not running
            )
        except InvalidRequestError as error:
            self._table.fail(live, error)
            return False
        self._table.head_must_wait = not fits
        return fits

    def _run(self, live: LiveRequest) -> None:
        self._table.run(live)
        if live.leader is None:
            self._begin(live)
        else:
            self._followers.append(live)

    def _join(self, follower: LiveRequest) -> bool:
        """It has what its leader computed for it; False if it has to go on waiting.

        Where that takes blocks that the seats so far are to have, it gives them up again.
        """
        if not self._admission.join(follower):
            return False
        self._begin(follower)
        if self.blocks < 0:
            self._table.preempt(follower)
            return False
        return True

    def _begin(self, live: LiveRequest) -> None:
        """What need not be computed is attached: say so, and what it costs to come back."""
        request_id, counters = live.request.request_id, self._table.counters
        again = max(0, live.num_lost_tokens - live.num_computed_tokens)
        if not live.was_admitted:
            live.was_admitted = True
            if live.request.draws:
                self._speculation.begin(live)
            n_prompt = len(live.request.prompt)
            n_cached = min(live.num_computed_tokens, n_prompt)  # the output's are none of its
            counters.prompt_tokens += n_prompt
            counters.cached_tokens += n_cached
            counters.replayed_tokens += again
            counters.events.append(Admitted(request_id, n_cached))
        else:
            if live.outlived_engine:
                counters.replayed_tokens += again
            else:
                counters.recomputed_tokens += again
            counters.events.append(Resumed(request_id, again, live.outlived_engine))
        live.num_lost_tokens, live.outlived_engine = 0, False


class _Leaders:
    """Whose prompts are being computed, by how they begin: others that begin so may follow."""

    def __init__(self, running: Iterable[LiveRequest], block_size: int) -> None:
        self._block_size = block_size
        self._by_beginning: dict[tuple[str, tuple[int, ...]], list[LiveRequest]] = {}
        for live in running:
            if live.leader is None and not live.is_generating:
                self.add(live)

    def add(self, live: LiveRequest) -> None:
        self._by_beginning.setdefault(self._beginning(live), []).append(live)

    def of(self, live: LiveRequest) -> Iterable[LiveRequest]:
        return self._by_beginning.get(self._beginning(live), ())

    def _beginning(self, live: LiveRequest) -> tuple[str, tuple[int, ...]]:
        return live.request.namespace, live.request.prompt[: self._block_size]


def _seniority(live: LiveRequest) -> tuple[float, int]:
    return live.seniority, live.number


def _no_room(live: LiveRequest) -> KvCacheFullError:
    return KvCacheFullError(
        f"request {live.request.request_id} runs alone, and there is no KV block for its next "
        f"token after {live.num_tokens}; raise n_ctx"
    )
