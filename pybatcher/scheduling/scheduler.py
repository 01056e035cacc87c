"""`Scheduler`: which tokens the next forward pass computes. Sans-IO.

No asyncio, no thread, no clock, no engine: times come in as arguments, KV
questions go to a `KvBook`, and what happened comes out as events.

    submit ──> waiting ──plan──> running ──apply──> ... ──> Generated(finish_reason)
                  │                 │
                  └── cancel / deadline / fail_all ──────> gone, KV free

A step is a `plan` and then an `apply` (or `abandon_step`). In between the KV
belongs to the engine: who ends then keeps its sequence until the step is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from ..config import SchedulerConfig
from ..errors import (
    EngineError,
    EngineFailedError,
    InvalidRequestError,
    PybatcherError,
    RequestTooLongError,
)
from .admission import Admission
from .events import Admitted, Event, Expired, Failed, Generated, own_copy
from .kv_book import KvBook
from .plan import SampledToken, StepEntry, StepPlan, StepResult
from .prefix import SharedPrefix
from .queue import WaitingQueue
from .request import Request, RunningRequest
from .speculation import Speculation
from .statistics import SchedulerStatistics

__all__ = ["Scheduler"]


class Scheduler:
    """First come, first served, in steps of at most `n_batch` rows.

    A request is admitted in a step that has a row for it beside one for each
    that runs already. So no more than `n_batch` run, and each generating one has
    a row in every step. See `Admission` for what else a request needs to run,
    and for `reserved_sequences`.
    """

    def __init__(self, config: SchedulerConfig, kv: KvBook, *, reserved_sequences: int = 0) -> None:
        self._config = config
        self._kv = kv
        self._admission = Admission(kv, reserved_sequences)
        self._speculation = Speculation(config.max_draft_tokens)
        self._waiting = WaitingQueue(config.max_queue_requests, config.max_queue_tokens)
        self._running: dict[int, RunningRequest] = {}  # by request id, oldest first
        self._in_flight: list[tuple[RunningRequest | SharedPrefix, StepEntry]] | None = None
        self._ended_in_flight: list[RunningRequest] = []
        self._events: list[Event] = []
        self._head_must_wait = False
        self._submitted = self._completed = self._cancelled = self._expired = self._failed = 0
        self._steps = self._prompt_tokens = self._cached_tokens = 0
        self._generated_tokens = self._computed_tokens = 0

    # -- requests come and go; allowed at any time, also during a step ----------------------

    def submit(self, request: Request, now: float) -> None:
        """Queue a request.

        Raises RequestTooLongError for what could never be admitted and
        QueueFullError for what cannot wait now; then nothing has changed.
        """
        self._admission.check_can_ever_fit(request)
        self._waiting.append(request, now)
        self._submitted += 1

    def cancel(self, request_id: int) -> bool:
        """Forget a request; its owner wants no events about it any more.

        Its KV is free at once, or when the step under way ends. False if it
        has ended already.
        """
        gone = self._take_back(request_id)
        self._cancelled += gone
        return gone

    def finish(self, request_id: int) -> bool:
        """Like `cancel`, for an owner that has all it wants (a stop text came, say)."""
        gone = self._take_back(request_id)
        self._completed += gone
        return gone

    def fail(self, request_id: int) -> bool:
        """Like `cancel`, for an owner that could not make use of what came."""
        gone = self._take_back(request_id)
        self._failed += gone
        return gone

    def fail_all(self, error: PybatcherError) -> list[Event]:
        """End every request, each with an error like this one. Returns all events not yet taken."""
        waiting = [request.request_id for request in self._waiting.requests]
        for request_id in [*self._running, *waiting]:
            with suppress(EngineError):  # a broken engine may refuse to free what it holds
                if not self._take_back(request_id):
                    continue
            self._fail(request_id, own_copy(error))
        return self.take_events()

    def share_prefix(self, tokens: tuple[int, ...]) -> None:
        """Compute `tokens` once, in a sequence of its own; prompts that begin so get a copy.

        They wait until it is there. Sharing happens in the namespace "".
        Raises RequestTooLongError when there is no room for it.
        """
        self._admission.want_prefix(tokens)

    def drop_prefixes(self) -> None:
        """Free the KV of all shared prefixes. Not during a step."""
        self._admission.drop_prefixes()

    # -- steps ------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan | None:
        """Say what the next step computes; None when there is nothing to compute.

        Expires what is past its deadline, then seats, within `n_batch` rows:
        one row of every generating request, the rest of started prompts
        (oldest first), then waiting requests in their order, as long as they
        fit; guesses at what comes next, in rows that nobody else wants. Takes
        sequences and attaches cached prefixes on the way.
        """
        if self._in_flight is not None:
            raise RuntimeError("plan() was called before the last step was applied")
        self._expire(now)
        generating = [running for running in self._running.values() if running.is_generating]
        seats: list[tuple[RunningRequest | SharedPrefix, int]] = [(r, 1) for r in generating]
        decode_rows = len(seats)
        budget = self._config.n_batch - decode_rows
        if decode_rows and self._config.max_prefill_tokens:
            budget = min(budget, self._config.max_prefill_tokens)
        if self._admission.start_prefixes(self._running.values()):
            self._refuse_what_no_longer_fits()
        for behind in self._unfinished_prompts():
            if budget:
                seats.append((behind, min(behind.num_tokens_to_compute, budget)))
                budget -= seats[-1][1]
        while budget and (admitted := self._admit_head(now)) is not None:
            seats.append((admitted, min(admitted.num_tokens_to_compute, budget)))
            budget -= seats[-1][1]
        if not seats:
            return None
        prefill_rows = sum(count for _, count in seats[decode_rows:])
        drafts = self._speculation.drafts(
            generating,
            self._config.n_batch - decode_rows - prefill_rows,
            self._kv.max_sequence_length,
        )
        self._in_flight = [
            (owner, _entry(owner, count, drafts.get(owner.seq_id, ()))) for owner, count in seats
        ]
        plan = StepPlan(
            entries=tuple(entry for _, entry in self._in_flight),
            decode_rows=decode_rows,
            prefill_rows=prefill_rows,
            draft_rows=sum(map(len, drafts.values())),
        )
        self._speculation.step_begins(plan, now)
        return plan

    def apply(self, result: StepResult, now: float) -> list[Event]:
        """Take in what the planned step gave. Returns all events not yet taken."""
        if self._in_flight is None:
            raise RuntimeError("apply() was called without a planned step")
        seats, self._in_flight = self._in_flight, None
        self._steps += 1
        self._speculation.step_ends(now)
        for owner, entry in seats:
            self._computed_tokens += len(entry.tokens)
            owner.num_computed_tokens += len(entry.tokens) - entry.n_draft
            if isinstance(owner, SharedPrefix):
                self._head_must_wait = False
            elif entry.sample:
                self._take_tokens(owner, entry, result)
        self._free_ended()
        return self.take_events()

    def abandon_step(self) -> None:
        """The engine could not do the planned step, if there is one: nothing of it was computed."""
        self._in_flight = None
        with suppress(EngineError):
            self._free_ended()

    def take_events(self) -> list[Event]:
        """Everything that happened since events were last taken."""
        events, self._events = self._events, []
        return events

    # -- questions --------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Nothing runs: what waits, if anything, waits for company and not for room."""
        return (
            self._in_flight is None
            and not self._admission.wants_prefixes
            and next(self._unfinished_prompts(), None) is None
            and not self._running
        )

    @property
    def n_waiting(self) -> int:
        """Requests that hold no sequence yet."""
        return len(self._waiting)

    @property
    def waiting_since(self) -> float | None:
        """When the request that is next was submitted; None when none waits."""
        return self._waiting.waiting_since

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of all that wait; None when none has one."""
        return self._waiting.next_deadline

    def statistics(self) -> SchedulerStatistics:
        """Counts so far. See `SchedulerStatistics`."""
        return SchedulerStatistics(
            queued=len(self._waiting),
            queued_tokens=self._waiting.tokens,
            running=len(self._running) - len(self._ended_in_flight),
            submitted=self._submitted,
            completed=self._completed,
            cancelled=self._cancelled,
            expired=self._expired,
            failed=self._failed,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            generated_tokens=self._generated_tokens,
            computed_tokens=self._computed_tokens,
            proposed_tokens=self._speculation.proposed_tokens,
            accepted_tokens=self._speculation.accepted_tokens,
        )

    # -- inside -----------------------------------------------------------------------------

    def _unfinished_prompts(self) -> Iterator[RunningRequest | SharedPrefix]:
        """Started, but not all computed. Shared prefixes first: others wait for them."""
        yield from (p for p in self._admission.prefixes if p.num_tokens_to_compute)
        yield from (r for r in self._running.values() if not r.is_generating)

    def _admit_head(self, now: float) -> RunningRequest | None:
        """Let the request that is next run, if it can; refuse what the engine does not take."""
        while (request := self._next_in_line()) is not None:
            try:
                running = self._admission.admit(request, self._running.values())
            except InvalidRequestError as error:
                self._take_back(request.request_id)
                self._fail(request.request_id, error)
                continue
            if running is None:
                self._head_must_wait = True
                return None
            self._waiting.admit_head(now)
            self._running[request.request_id] = running
            self._speculation.begin(running)
            self._prompt_tokens += len(request.prompt)
            self._cached_tokens += running.num_computed_tokens
            self._events.append(Admitted(request.request_id, running.num_computed_tokens))
            return running
        return None

    def _next_in_line(self) -> Request | None:
        """Who may be admitted now; None if nobody waits, or has to go on waiting."""
        if self._head_must_wait or self._admission.wants_prefixes:
            return None
        return self._waiting.head if len(self._running) < self._admission.max_running else None

    def _refuse_what_no_longer_fits(self) -> None:
        """A shared prefix took KV for good: who waits may never have enough any more."""
        for request in self._waiting.requests:
            try:
                self._admission.check_can_ever_fit(request)
            except RequestTooLongError as error:
                self._take_back(request.request_id)
                self._fail(request.request_id, error)

    def _take_tokens(self, running: RunningRequest, entry: StepEntry, result: StepResult) -> None:
        """The tokens that the step drew for a request, as far as its output goes."""
        tokens = result.sampled.get(running.seq_id, ())
        why = result.failed.get(running.seq_id)
        if not tokens and why is None:
            why = "the engine drew no token for it"
        n_accepted = len(tokens) - (why is None)  # one token came before any guess, or nothing did
        running.num_computed_tokens += n_accepted
        self._speculation.judge(entry.n_draft, n_accepted)
        for token in tokens:
            if not running.ended:
                self._take_token(running, token)
        if why is not None and not running.ended:
            self._end(running)
            error = EngineFailedError(f"this request failed: {why}")
            self._fail(running.request.request_id, error)

    def _take_token(self, running: RunningRequest, token: SampledToken) -> None:
        """A request's next token, and whether it is the last one."""
        request = running.request
        running.output.append(token.token_id)
        self._generated_tokens += 1
        if token.token_id in request.end_token_ids:
            event = Generated(request.request_id, token, "stop")
        elif len(running.output) >= request.max_output(self._kv.max_sequence_length):
            event = Generated(request.request_id, token, "length")
        else:
            event = Generated(request.request_id, token)
        if event.finish_reason is not None:
            self._end(running)
            self._completed += 1
        self._events.append(event)

    def _expire(self, now: float) -> None:
        late = [
            request_id
            for request_id, running in self._running.items()
            if running.request.deadline is not None and running.request.deadline <= now
        ]
        for request_id in [*late, *self._waiting.expired(now)]:
            self._take_back(request_id)
            self._expired += 1
            self._events.append(Expired(request_id))

    def _fail(self, request_id: int, error: PybatcherError) -> None:
        self._failed += 1
        self._events.append(Failed(request_id, error))

    def _take_back(self, request_id: int) -> bool:
        """End a request wherever it is; False if it has ended already."""
        if request_id in self._waiting:
            head = self._waiting.head
            self._waiting.remove(request_id)
            if head is not self._waiting.head:
                self._head_must_wait = False
            return True
        running = self._running.get(request_id)
        if running is None or running.ended:
            return False
        self._end(running)
        return True

    def _end(self, running: RunningRequest) -> None:
        """Free its KV: now, or after the step that may be computing it."""
        running.ended = True
        if self._in_flight is None:
            self._free(running)
        else:
            self._ended_in_flight.append(running)

    def _free_ended(self) -> None:
        while self._ended_in_flight:
            self._free(self._ended_in_flight.pop())

    def _free(self, running: RunningRequest) -> None:
        del self._running[running.request.request_id]
        self._head_must_wait = False
        self._kv.seq_remove(running.seq_id)


def _entry(owner: RunningRequest | SharedPrefix, count: int, draft: tuple[int, ...]) -> StepEntry:
    tokens = owner.next_tokens(count) + draft
    return StepEntry(owner.seq_id, tokens, owner.draws_after(count), len(draft))
