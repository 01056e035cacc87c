"""`BatchBuilder`: schedules the rows of the next step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

from ..errors import ConfigError, KvCacheFullError
from ..params.config import SchedulerConfig
from .admission import Admission
from .budget import StepBudget, long_prefill_threshold
from .containment import WorkFor
from .events import Admitted, Resumed
from .kv_allocator import KvAllocator, appendable_blocks, blocks_for
from .plan import EncodeWork
from .preemption import VICTIM_POLICIES
from .prefix import SharedPrefix
from .request import LiveRequest
from .request_table import RequestTable
from .speculation import Speculation
from .step_time import StepLoad, StepTime
from .tower import Tower

__all__ = ["BatchBuilder", "ScheduledRows"]

ScheduledRows = list[tuple[LiveRequest | SharedPrefix, int]]
"""Owners with the number of their next tokens to compute; generating requests first."""

_SENIORITY = attrgetter("seniority", "number")


class BatchBuilder:
    """Schedules decode rows, then started prompts, oldest first, then waiting requests, in turn.

    Counts KV blocks on the way, so that every scheduled row has a block. An exception during the
    scheduling of rows can be contained: the next call starts from scratch.

    admission: finds KV for requests that have none.
    load: the load of the step that was built last. blocks: the number of blocks that it leaves.
    encode: the work of the vision tower in that step; None: none.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KvAllocator,
        table: RequestTable,
        speculation: Speculation,
        step_time: StepTime | None,
        tower: Tower,
    ) -> None:
        self._config = config
        self._kv = kv
        self._table = table
        self._speculation = speculation
        self._step_time = step_time
        self.admission = Admission(kv, config, table.prefixes)
        self._pick_victim = VICTIM_POLICIES[config.victim_policy]
        self._threshold = long_prefill_threshold(config, kv.max_sequence_length)
        if kv.n_parallel <= config.max_prefixes:
            raise ConfigError(
                f"max_prefixes is {config.max_prefixes} and the engine has {kv.n_parallel} "
                "sequences: none is left for requests; lower max_prefixes, or raise n_parallel"
            )
        self.max_running = min(kv.n_parallel - config.max_prefixes, config.n_batch)
        self._followers: list[LiveRequest] = []
        self._taken_blocks = 0  # by the rows scheduled so far
        self.load = StepLoad()
        self._tower = tower
        self.encode: EncodeWork | None = None

    @property
    def blocks(self) -> int:
        """Blocks that can be appended beside those of the rows scheduled so far."""
        return appendable_blocks(self._kv) - self._taken_blocks

    # -- the two kinds of steps ---------------------------------------------------------------

    def build(self) -> tuple[ScheduledRows, list[LiveRequest]]:
        """Return the rows of an ordinary step, and the generating requests among their owners."""
        self._begin_step()
        suspects = [p for p in self._table.prefixes if p.is_suspect and p.seq_id >= 0]
        if suspects and (alone := self._rows_of_prefix(suspects)):
            return alone, []
        generating = self._generating()
        rows: ScheduledRows = [(live, 1) for live in generating]
        self.load = StepLoad(decode_rows=len(generating))
        if self._step_time is not None:
            self.load.decode_context = sum(live.num_computed_tokens for live in generating)
        budget = StepBudget(self._config, self._threshold, self.load, self._step_time)
        n_partial = 0
        with WorkFor("schedule its prompt") as work:
            for work.owner in self._started_prompts():
                n_partial += self._schedule(rows, work.owner, budget)
        self.encode = self._tower.plan(budget)
        self._schedule_newcomers(rows, n_partial, budget)
        self.encode = self.encode or self._tower.plan(budget)
        if self._config.max_num_partial_prefills > 1:
            self._top_up(rows, len(generating), budget)
        if not rows and self.encode is None and self._table.running:
            self._schedule_by_preemption(rows, budget)
        return rows, generating

    def build_alone(self, candidate: LiveRequest) -> ScheduledRows:
        """Return the rows of a step without other requests; none if it cannot run alone."""
        self._begin_step()
        if rows := self._rows_of_prefix(self._started_prefixes()):
            return rows  # the prompt of the candidate may begin with that prefix
        budget = StepBudget(self._config, 0, self.load, None)
        with WorkFor("schedule it alone", candidate):
            while candidate.seq_id < 0 and not self._admit(candidate, (), alone=True):
                if not self._preempt_one(spared=candidate):
                    return rows
            if candidate.request.request_id not in self._table.running:
                self._run(candidate)
            if candidate.leader is None or self._join(candidate):
                self._schedule(rows, candidate, budget)
                self.encode = self._tower.plan(budget)
                while not rows and self.encode is None and self._preempt_one(spared=candidate):
                    self._schedule(rows, candidate, budget)
        return rows

    def _rows_of_prefix(self, prefixes: Iterable[SharedPrefix]) -> ScheduledRows:
        """Return rows of the first of these prefixes that fits into the free blocks."""
        rows: ScheduledRows = []
        self.load, self._taken_blocks = StepLoad(), 0
        budget = StepBudget(self._config, 0, self.load, None)
        with WorkFor("schedule it") as work:
            for work.owner in prefixes:
                if not rows:
                    self._schedule(rows, work.owner, budget)
        return rows

    def let_followers_join(self) -> None:
        """After a step, give followers the KV of their leaders if it is computed."""
        self._taken_blocks = 0  # the step has allocated them
        waiting = []
        with WorkFor("copy its leader's KV") as work:
            for work.owner in self._followers:
                live = work.owner
                if not live.ended and live.leader is not None and not self._join(live):
                    waiting.append(live)
        self._followers = waiting

    # -- rows ---------------------------------------------------------------------------------

    def _generating(self) -> list[LiveRequest]:
        """Return the generating requests, and count the blocks for their next tokens.

        Preempts requests until the blocks suffice.
        """
        block_size, self._taken_blocks = self._kv.block_size, 0
        while True:
            generating = []
            needed = 0
            with WorkFor("count its blocks") as work:
                for work.owner in self._table.running.values():
                    live = work.owner
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
        """Yield owners of partially computed prompts, shared prefixes first."""
        yield from self._started_prefixes()
        behind = []
        with WorkFor("see how far its prompt is computed") as work:
            for work.owner in self._table.running.values():
                if not work.owner.is_generating:
                    behind.append(work.owner)
        behind.sort(key=_SENIORITY)
        for live in behind:
            with WorkFor("copy its leader's KV", live):
                if live.leader is not None and not self._join(live):
                    continue
            yield live

    def _started_prefixes(self) -> Iterator[SharedPrefix]:
        for prefix in self._table.prefixes:
            with WorkFor("see how far it is computed", prefix):
                is_behind = prefix.seq_id >= 0 and prefix.num_tokens_to_compute > 0
            if is_behind:
                yield prefix

    def _schedule_newcomers(self, rows: ScheduledRows, n_partial: int, budget: StepBudget) -> None:
        """Admit waiting requests, in turn, as long as there are rows and KV, and schedule them.

        n_partial: number of prompts that are partially computed already.
        """
        leaders: _Leaders | None = None
        while (live := self._next_in_line()) is not None and budget.offer(0, 1):
            if leaders is None:
                leaders = _Leaders(self._table.running.values(), self._kv.block_size)
            with WorkFor("admit it", live):
                if live.request.is_whole and not budget.offer_whole(live.num_tokens_to_compute):
                    break  # no newcomer overtakes it, so that it is scheduled eventually
                if not self._admit(live, leaders.of(live)):
                    continue
                if self.blocks < 0:  # its cached windows took blocks of the rows scheduled so far
                    self.admission.forget(live)
                    break
                left = self._tower.ready(live, live.num_tokens_to_compute)
                is_partial = (
                    not live.request.is_whole
                    and budget.offer(live.num_computed_tokens, left) < left
                )
                if is_partial and n_partial >= self._config.max_num_partial_prefills:
                    self.admission.forget(live)
                    break
                self._run(live)
                if live.leader is None or self._join(live):
                    leaders.add(live)
                    n_partial += self._schedule(rows, live, budget)
                elif live.seq_id < 0:
                    break  # preempted: the rows scheduled so far leave no block for its copy

    def _schedule(
        self, rows: ScheduledRows, owner: LiveRequest | SharedPrefix, budget: StepBudget
    ) -> bool:
        """Append the owner's rows that fit into the step and KV. True if tokens are left over.

        Tokens of images that are not encoded yet, and those after them, do not count.
        """
        computed, left = owner.num_computed_tokens, self._left_of(owner)
        room = self._room_after(computed)
        if isinstance(owner, LiveRequest) and owner.request.is_whole:
            count = budget.offer_whole(left) if left <= room else 0
        else:
            count = min(budget.offer(computed, left), room)
        if count:
            rows.append((owner, count))
            self._take(computed, count, budget)
        return count < left

    def _top_up(self, rows: ScheduledRows, n_generating: int, budget: StepBudget) -> None:
        """Give the remaining rows to the prompts with the fewest tokens left."""
        prompts = rows[n_generating:]
        missing = []
        with WorkFor("schedule its prompt") as work:
            for i, (work.owner, count) in enumerate(prompts, n_generating):
                missing.append((self._left_of(work.owner) - count, i))
        for left, i in sorted(missing):
            owner, count = rows[i]
            computed = owner.num_computed_tokens + count
            more = min(budget.offer(computed, left, had=count), self._room_after(computed))
            if more > 0:
                rows[i] = (owner, count + more)
                self._take(computed, more, budget)

    def _left_of(self, owner: LiveRequest | SharedPrefix) -> int:
        """Return how many of the owner's tokens can be computed now, as far as images go."""
        left = owner.num_tokens_to_compute
        return left if isinstance(owner, SharedPrefix) else self._tower.ready(owner, left)

    def _begin_step(self) -> None:
        self._start_prefixes()
        self._tower.begin_step()
        self.encode = None

    def _take(self, computed: int, count: int, budget: StepBudget) -> None:
        block_size = self._kv.block_size
        budget.take(computed, count)
        self._taken_blocks += blocks_for(computed + count, block_size)
        self._taken_blocks -= blocks_for(computed, block_size)

    def _room_after(self, computed: int) -> int:
        """Return how many tokens fit after `computed` ones: into the last block and free blocks."""
        block_size = self._kv.block_size
        return -computed % block_size + max(self.blocks, 0) * block_size

    def _schedule_by_preemption(self, rows: ScheduledRows, budget: StepBudget) -> None:
        """Preempt until the most senior partially computed prompt has KV for more rows."""
        while not rows and self._preempt_one():
            with WorkFor("schedule its prompt") as work:
                for work.owner in self._started_prompts():
                    self._schedule(rows, work.owner, budget)

    # -- KV -----------------------------------------------------------------------------------

    def _start_prefixes(self) -> None:
        """Give sequences to shared prefixes; requests that could not run beside them fail."""
        table = self._table
        self.admission.start_prefixes(table.running.values(), table.admitted)
        if table.prefixes.have_grown:
            with WorkFor("see whether it fits beside the shared prefixes") as work:
                for work.owner in table.without_sequence:
                    self.admission.check_can_ever_fit(work.owner.request)
            table.prefixes.have_grown = False

    def _preempt_one(self, spared: LiveRequest | None = None) -> bool:
        """Preempt one request; False if there is none.

        The most senior request is spared, so that one request finishes under any policy.
        """
        holders = [live for live in self._table.running.values() if live.num_computed_tokens]
        if spared is None and holders:
            spared = min(holders, key=_SENIORITY)
        candidates = [live for live in holders if live is not spared]
        if not candidates:
            return False
        victim = self._pick_victim(candidates, self._kv)
        with WorkFor("preempt it", victim):
            self._table.preempt(victim)
        return True

    # -- admission ----------------------------------------------------------------------------

    def _next_in_line(self) -> LiveRequest | None:
        """Return the next request to admit; None if none waits, or if none can be admitted now."""
        table = self._table
        if table.head_must_wait or len(table.running) >= self.max_running:
            return None
        if table.prefixes.waiting and not table.waiting.returned:
            return None  # newcomers would take the KV that a prefix waits for
        return table.waiting.head

    def _admit(
        self, live: LiveRequest, leaders: Iterable[LiveRequest], *, alone: bool = False
    ) -> bool:
        """Give the request a sequence, if it fits; sets `head_must_wait` of the table."""
        running = self._table.running
        fits = self.admission.admit(live, running.values(), leaders, alone=alone or not running)
        self._table.head_must_wait = not fits
        return fits

    def _run(self, live: LiveRequest) -> None:
        self._table.run(live)
        if live.leader is None:
            self._begin(live)
        else:
            self._followers.append(live)

    def _join(self, follower: LiveRequest) -> bool:
        """Give a follower its leader's KV; False if it has to keep waiting.

        If that takes blocks of the rows scheduled so far, the follower is preempted.
        """
        if not self.admission.join(follower):
            return False
        self._begin(follower)
        if self.blocks < 0:
            self._table.preempt(follower)
            return False
        return True

    def _begin(self, live: LiveRequest) -> None:
        """Queue `Admitted` or `Resumed`, and count cached and recomputed tokens."""
        request_id, counters = live.request.request_id, self._table.counters
        again = max(0, live.num_lost_tokens - live.num_computed_tokens)
        if not live.was_admitted:
            live.was_admitted = True
            if live.request.samples:
                self._speculation.begin(live)
            n_prompt = len(live.request.prompt)
            n_cached = min(live.num_computed_tokens, n_prompt)  # without those of the output
            counters.prompt_tokens += n_prompt
            counters.cached_tokens += n_cached
            counters.image_tokens += live.request.n_image_tokens
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
    """Requests whose prompts are being computed, by namespace and first block of tokens.

    Requests with the same beginning may follow them.
    """

    def __init__(self, running: Iterable[LiveRequest], block_size: int) -> None:
        self._block_size = block_size
        self._by_beginning: dict[tuple[str, tuple[int, ...]], list[LiveRequest]] = {}
        with WorkFor("let others follow it") as work:
            for work.owner in running:
                if work.owner.leader is None and not work.owner.is_generating:
                    self.add(work.owner)

    def add(self, live: LiveRequest) -> None:
        self._by_beginning.setdefault(self._beginning(live), []).append(live)

    def of(self, live: LiveRequest) -> Iterable[LiveRequest]:
        return self._by_beginning.get(self._beginning(live), ())

    def _beginning(self, live: LiveRequest) -> tuple[str, tuple[int, ...]]:
        return live.request.namespace, live.request.prompt[: self._block_size]


def _no_room(live: LiveRequest) -> KvCacheFullError:
    return KvCacheFullError(
        f"request {live.request.request_id} runs alone, and there is no KV block for its next "
        f"token after {live.num_tokens}; raise n_ctx"
    )
