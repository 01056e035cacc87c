"""`Scheduler`: decides which tokens the next forward pass computes. Sans-IO.

It has no asyncio, thread, clock or engine: times are arguments, KV is managed through a
`KvAllocator`, and changes of requests are returned as events.

    submit ──> waiting ──plan──> running ──apply──> ... ──> Generated(finish_reason)
                  │  ^              │
                  │  └─ preempted, ─┤
                  │     step failed │
                  └── cancel / deadline / fail_all ──────> gone, KV free

A step is a `plan` and then an `apply` (or `step_failed`). In between the KV belongs to the engine:
a request that ends keeps its sequence until the step is over.

An exception in the work for one request ends that request (`containment` has the rule).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

from ..errors import EngineError, EngineFailedError, PybatcherError
from ..params.config import SchedulerConfig
from .batch_builder import BatchBuilder, ScheduledRows
from .containment import RequestFault, WorkFor, contain, typed_errors_of
from .events import Answered, Generated, SchedulerEvent, own_copy
from .kv_allocator import KvAllocator
from .plan import StepEntry, StepPlan, StepResult
from .poison import PoisonRequests, poison_error
from .prefix import SharedPrefix
from .request import LiveRequest, Request
from .request_table import RequestTable
from .speculation import Speculation
from .statistics import SchedulerStatistics
from .step_time import StepTime
from .tower import Tower

__all__ = ["Scheduler"]

_InFlight = list[tuple[LiveRequest | SharedPrefix, StepEntry]]


class Scheduler:
    """Plans steps of at most `n_batch` rows: decode, then started prompts, then waiting requests.

    A request is admitted in a step that has a row for it beside one row for each running request.
    Therefore at most `n_batch` requests run, and each generating request has a row in every step.
    `RequestTable` has the states of requests, `WaitingQueue` their order, `BatchBuilder` schedules
    the rows of a step, `Admission` gives sequences, `StepBudget` divides prefill rows, and
    `preemption` picks the request that loses its KV when KV runs out.
    """

    def __init__(self, config: SchedulerConfig, kv: KvAllocator) -> None:
        self._table = RequestTable(config, kv)
        self._counters = self._table.counters
        self._speculation = Speculation(config.max_draft_tokens if kv.takes_drafts else 0)
        times_steps = config.itl_target is not None or config.dynamic_chunking
        self._step_time = StepTime() if times_steps else None
        self._tower = Tower(kv)
        self._builder = BatchBuilder(
            config, kv, self._table, self._speculation, self._step_time, self._tower
        )
        self._poison = PoisonRequests()
        self._n_batch = config.n_batch
        self._kv = kv
        self._in_flight: _InFlight | None = None
        self._began = 0.0

    # -- requests come and go; allowed at any time, also during a step ----------------------

    def submit(self, request: Request, now: float) -> None:
        """Queue a request.

        Raises RequestTooLongError if it could never be admitted, QueueFullError if it cannot wait
        now, and EngineError with its cause for values of wrong types. Nothing has changed then.
        """
        with typed_errors_of("submit it", request):
            if request.images is not None:
                self._tower.check(request.images, request.where)
            self._builder.admission.check_can_ever_fit(request)
            self._table.add(request, now)

    def cancel(self, request_id: int) -> bool:
        """Forget a request, without any further event about it.

        Its KV is freed at once, or when the current step ends. False if it has ended already.
        """
        gone = self._table.take_back(request_id)
        self._counters.cancelled += gone
        return gone

    def finish(self, request_id: int) -> bool:
        """Like `cancel`, and count it as completed: its output ended early at a stop text."""
        gone = self._table.take_back(request_id)
        self._counters.completed += gone
        return gone

    def fail(self, request_id: int) -> bool:
        """Like `cancel`, and count it as failed: its owner could not use the output."""
        gone = self._table.take_back(request_id)
        self._counters.failed += gone
        return gone

    def pause(self, request_ids: Iterable[int], paused: bool) -> None:
        """Pause requests whose output is not read, or resume them.

        Paused requests give up their KV and wait while any other request is in flight.
        """
        self._table.pause(request_ids, paused)

    def fail_all(self, error: PybatcherError) -> list[SchedulerEvent]:
        """End every request, each with a copy of this error. Returns all events not yet taken."""
        for live in list(self._table.live.values()):
            with suppress(EngineError):  # a broken engine may not free KV
                self._table.fail(live, own_copy(error))
        return self.take_events()

    def add_prefix(self, tokens: tuple[int, ...], namespace: str | None = "") -> SharedPrefix:
        """Compute `tokens` once and keep their KV for prompts of the namespace that begin so.

        namespace: None: prompts of every namespace share it. The tokens must then come from the
            batcher's owner, and not from a caller.
        Such prompts wait until the prefix is computed. Each call is undone by a `remove_prefix`. A
        prefix that cannot be computed is dropped, and its `error` is set.
        Raises RequestTooLongError and NoFreeSequenceError if there is no room for it, and
        EngineError with its cause for values of wrong types.
        """
        prefix = SharedPrefix(tokens, namespace)
        with typed_errors_of("add it", prefix):
            prefix = self._table.prefixes.add(prefix)
        self._table.head_must_wait = False
        return prefix

    def remove_prefix(self, prefix: SharedPrefix) -> None:
        """Undo one `add_prefix`. Requests that use the prefix keep the KV they have of it."""
        self._table.prefixes.release(prefix, self._table.remove_sequence)

    @property
    def prefixes(self) -> list[SharedPrefix]:
        """The shared prefixes that are kept, computed or not."""
        return list(self._table.prefixes)

    def drop_prefixes(self) -> None:
        """Drop all shared prefixes with any number of holders."""
        for prefix in list(self._table.prefixes):
            prefix.holders = 1
            self.remove_prefix(prefix)

    # -- steps ------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan | None:
        """Plan the next step; None if there is nothing to compute.

        Ends requests past their deadlines. Then schedules, within `n_batch` rows: one row of every
        generating request (preempting others if KV runs out), the rest of started prompts, oldest
        first, then waiting requests, in turn, as long as they fit, and draft tokens in the
        remaining rows. Takes sequences and attaches cached prefixes on the way.

        An exception in the work for one request ends that request with `Failed`, and the step is
        planned without it. Raises EngineFailedError, or an exception that belongs to no request,
        for the engine as a whole; the caller then calls `step_failed`.
        """
        if self._in_flight is not None:
            raise RuntimeError("plan() was called before the last step was applied")
        self._table.expire(now)
        plan = contain(partial(self._plan, now), self._end_faulty)
        if plan is not None:
            self._table.in_step = True
            self._tower.step_begins()
            self._began = now
            self._speculation.step_begins(plan, now)
        return plan

    def apply(self, result: StepResult, now: float) -> list[SchedulerEvent]:
        """Apply the results of the planned step. Returns all events not yet taken.

        An exception in the work for one request ends that request with `Failed`. Raises
        EngineFailedError, or an exception that belongs to no request, as `plan` does.
        """
        if self._in_flight is None:
            raise RuntimeError("apply() was called without a planned step")
        in_flight, self._in_flight = self._in_flight, None
        self._counters.steps += 1
        self._speculation.step_ends(now)
        if self._step_time is not None:
            self._step_time.note(self._builder.load, now - self._began)
        if result.encoded is not None:
            self._tower.take(result.encoded, self._table.running.values())
        rows = iter(in_flight)  # if `contain` runs the action again, it resumes at the next row
        contain(partial(self._take_results, rows, result), self._end_faulty)
        contain(self._builder.let_followers_join, self._end_faulty)
        self._table.step_over(now)
        return self.take_events()

    def step_failed(self, error: BaseException) -> list[SchedulerEvent]:
        """Handle a failure of the engine, which has forgotten all KV, in a step or outside.

        Running requests continue from the tokens they have, at the front of the queue. The requests
        and shared prefixes of the step run alone for a while, and an owner whose step fails alone
        ends. Returns all events not yet taken. Does not use the KvAllocator before the next `plan`.
        """
        in_flight, self._in_flight = self._in_flight or [], None
        contain(self._table.lose_kv, self._end_faulty)
        owners = [owner for owner, _ in in_flight]
        owners += [live for live in self._tower.owners if live not in owners]
        self._tower.lose()
        poison = self._poison.step_failed(owners)
        if poison is not None:
            self._end_owner(poison, poison_error(poison, error))
        return self.take_events()

    def forget_images(self) -> None:
        """Forget the rows of all images. A failure of the engine follows, which drops all KV."""
        self._tower.forget()

    def take_events(self) -> list[SchedulerEvent]:
        """Return the events since they were last taken, in order."""
        return self._counters.take_events()

    # -- questions --------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """True if nothing runs. No request waits for KV then, but parked requests may wait."""
        return (
            self._in_flight is None
            and not self._table.running
            and not self._table.waiting.returned
            and not any(prefix.num_tokens_to_compute for prefix in self._table.prefixes)
        )

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait for their turn."""
        return len(self._table.waiting)

    @property
    def waiting_since(self) -> float | None:
        """The time when the longest waiting request was submitted; None if none waits."""
        return self._table.waiting.waiting_since

    @property
    def resumes_at(self) -> float | None:
        """The time when parked requests continue if no other arrives; None: none will."""
        return self._table.resumes_at

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of all requests that have not ended; None if none has one."""
        return self._table.next_deadline

    def statistics(self) -> SchedulerStatistics:
        """Return the counts so far, and how many requests wait and run now."""
        table = self._table
        return self._counters.statistics(
            {
                "queued": len(table.waiting) + len(table.parked),
                "queued_tokens": table.waiting.tokens,
                "running": len(table.running) - len(table.ended_in_step),
                "proposed_tokens": self._speculation.draft_tokens,
                "accepted_tokens": self._speculation.accepted_tokens,
                "max_running": self._builder.max_running,
                "max_rows": self._n_batch,
            }
        )

    # -- inside -----------------------------------------------------------------------------

    def _end_faulty(self, fault: RequestFault) -> None:
        """End the request or shared prefix whose work raised."""
        self._end_owner(fault.owner, fault.typed)

    def _end_owner(self, owner: object, error: PybatcherError) -> None:
        if isinstance(owner, SharedPrefix):
            self._table.fail_prefix(owner, error)
        elif isinstance(owner, LiveRequest) and not owner.ended:
            self._table.fail(owner, error)

    def _plan(self, now: float) -> StepPlan | None:
        self._table.park_paused(now, spared=self._poison.current)
        generating: list[LiveRequest] = []
        rows = self._rows_of_poison_candidate()
        if not rows and self._poison.current is None:
            rows, generating = self._builder.build()
        encode = self._builder.encode
        if not rows and encode is None:
            return None
        decode_rows = len(generating)
        prefill_rows = sum(count for _, count in rows[decode_rows:])
        drafts = self._speculation.drafts(
            generating,
            self._n_batch - decode_rows - prefill_rows,
            self._builder.blocks,
            self._kv.block_size,
        )
        in_flight: _InFlight = []
        with WorkFor("make its step entry") as work:
            for work.owner, count in rows:
                draft = drafts.get(work.owner.seq_id, ()) if drafts else ()
                in_flight.append((work.owner, self._entry(work.owner, count, draft)))
        plan = StepPlan(
            entries=tuple(entry for _, entry in in_flight),
            decode_rows=decode_rows,
            prefill_rows=prefill_rows,
            draft_rows=sum(map(len, drafts.values())),
            encode=encode,
        )
        self._in_flight = in_flight
        return plan

    def _entry(
        self, owner: LiveRequest | SharedPrefix, count: int, draft: tuple[int, ...]
    ) -> StepEntry:
        if (
            count == 1 and isinstance(owner, LiveRequest) and owner.is_generating
        ):  # the case of most entries
            token = owner.output[-1]
            if owner.request.matcher is None:
                return StepEntry(owner.seq_id, (token, *draft), True, len(draft))
        tokens = owner.next_tokens(count) + draft
        samples = owner.samples_after(count)
        entry = StepEntry(
            owner.seq_id,
            tokens,
            samples,
            len(draft),
            owner.targets_after(count),
            owner.pooling_after(count),
        )
        if isinstance(owner, LiveRequest):
            if owner.request.images is not None:
                entry = entry._replace(images=self._tower.rows_of(owner, count))
            if samples and owner.request.matcher is not None:
                return entry._replace(matcher=owner.request.matcher, output=owner.output)
            if owner.request.n_top:
                return entry._replace(n_top=owner.request.n_top)
        return entry

    def _rows_of_poison_candidate(self) -> ScheduledRows:
        """Schedule the request that has to run alone now; no rows if none has."""
        while (candidate := self._poison.current) is not None:
            rows = self._builder.build_alone(candidate)
            if rows or self._builder.encode is not None:
                return rows
            self._poison.clear(candidate)
        return []

    def _take_results(
        self, rows: Iterator[tuple[LiveRequest | SharedPrefix, StepEntry]], result: StepResult
    ) -> None:
        with WorkFor("apply its results") as work:
            for work.owner, entry in rows:
                owner = work.owner
                n_tokens, n_draft = len(entry.tokens), entry.n_draft
                self._counters.computed_tokens += n_tokens
                owner.num_computed_tokens += n_tokens - n_draft
                if isinstance(owner, SharedPrefix):
                    self._table.head_must_wait = False
                    owner.is_suspect &= owner.num_tokens_to_compute > 0
                elif entry.sample:
                    self._take_tokens(owner, n_draft, result)
                elif not owner.request.samples and not owner.ended:
                    self._take_answer(owner, entry, result)

    def _take_tokens(self, live: LiveRequest, n_draft: int, result: StepResult) -> None:
        """Append the tokens that the step sampled for a request; the last one ends it."""
        tokens = result.sampled.get(live.seq_id, ())
        why = result.failed.get(live.seq_id) if result.failed else None
        if not tokens and why is None:
            why = "the engine sampled no token for it"
        if n_draft:
            # Without a failure, one of the tokens is sampled after the accepted ones.
            n_accepted = len(tokens) - (why is None)
            live.num_computed_tokens += n_accepted
            self._speculation.count(n_draft, n_accepted)
        request, output = live.request, live.output
        complete_at = len(output) + len(tokens) if live.seq_id in result.complete else -1
        for token in tokens:
            if live.ended:
                break
            output.append(token.token_id)
            reason = request.finish_reason(token.token_id, len(output), live.max_output)
            if len(output) == complete_at:
                reason = "stop"
            generated = Generated(request.request_id, token, reason)
            if reason is None:
                self._counters.events.append(generated)
            else:
                self._complete(live, generated)
        if request.matcher is not None:
            live.forced = result.forced.get(live.seq_id, ())
        if why is not None and not live.ended:
            self._table.fail(live, _failure(why))

    def _take_answer(self, live: LiveRequest, entry: StepEntry, result: StepResult) -> None:
        """Keep the log-probabilities of a prompt's chunk; with its last one, end the request."""
        request, seq_id = live.request, live.seq_id
        logprobs, vector = result.logprobs.get(seq_id, ()), result.embeddings.get(seq_id)
        top_logprobs = result.top_logprobs.get(seq_id, ())
        why = result.failed.get(seq_id)
        if why is None and (len(logprobs), len(top_logprobs), vector is None) != (
            len(entry.targets),
            len(entry.targets) if entry.n_top else 0,
            entry.pooling is None,
        ):
            why = "the engine gave no answer for it"
        if why is not None:
            self._table.fail(live, _failure(why))
            return
        live.logprobs += logprobs
        live.top_logprobs += top_logprobs
        if not live.num_tokens_to_compute:
            answers = tuple(live.logprobs), vector, tuple(live.top_logprobs)
            self._complete(live, Answered(request.request_id, *answers))

    def _complete(self, live: LiveRequest, ending: Generated | Answered) -> None:
        self._table.end(live)
        self._counters.completed += 1
        self._counters.events.append(ending)


def _failure(why: str | PybatcherError) -> PybatcherError:
    return EngineFailedError(f"this request failed: {why}") if isinstance(why, str) else why
