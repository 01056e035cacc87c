"""`Scheduler`: which tokens the next forward pass computes. Sans-IO.

No asyncio, no thread, no clock, no engine: times come in as arguments, KV
questions go to a `KvAllocator`, and what happened comes out as events.

    submit ──> waiting ──plan──> running ──apply──> ... ──> Generated(finish_reason)
                  │  ^              │
                  │  └─ preempted, ─┤
                  │     step failed │
                  └── cancel / deadline / fail_all ──────> gone, KV free

A step is a `plan` and then an `apply` (or `step_failed`). In between the KV
belongs to the engine: who ends then keeps its sequence until the step is over.
"""

from __future__ import annotations

from contextlib import suppress

from ..config import SchedulerConfig
from ..errors import EngineError, EngineFailedError, PybatcherError
from .batch_builder import BatchBuilder, Seats
from .events import Answered, Event, Generated, own_copy
from .kv_allocator import KvAllocator
from .plan import SampledToken, StepEntry, StepPlan, StepResult
from .poison import PoisonRequests
from .prefix import SharedPrefix
from .request import LiveRequest, Request
from .request_table import RequestTable
from .speculation import Speculation
from .statistics import SchedulerStatistics
from .step_time import StepTime

__all__ = ["Scheduler"]


class Scheduler:
    """Steps of at most `n_batch` rows: decode first, then started prompts, then who waits.

    A request is admitted in a step that has a row for it beside one for each
    that runs already. So no more than `n_batch` run, and each generating one has
    a row in every step. `RequestTable` knows where everybody is, `WaitingQueue` whose turn it
    is, `BatchBuilder` who has rows, `Admission` what it takes to run, `StepBudget` how much of
    a prompt a step computes, `preemption` who gives way when KV runs out.
    """

    def __init__(self, config: SchedulerConfig, kv: KvAllocator) -> None:
        self._table = RequestTable(config, kv)
        self._counters = self._table.counters
        self._speculation = Speculation(config.max_draft_tokens)
        times_steps = config.itl_target is not None or config.dynamic_chunking
        self._step_time = StepTime() if times_steps else None
        self._builder = BatchBuilder(config, kv, self._table, self._speculation, self._step_time)
        self._poison = PoisonRequests()
        self._n_batch = config.n_batch
        self._kv = kv
        self._in_flight: list[tuple[LiveRequest | SharedPrefix, StepEntry]] | None = None
        self._began = 0.0

    # -- requests come and go; allowed at any time, also during a step ----------------------

    def submit(self, request: Request, now: float) -> None:
        """Queue a request.

        Raises RequestTooLongError for what could never be admitted and
        QueueFullError for what cannot wait now; then nothing has changed.
        """
        self._builder.check_can_ever_fit(request)
        self._table.add(request, now)

    def cancel(self, request_id: int) -> bool:
        """Forget a request; its owner wants no events about it any more.

        Its KV is free at once, or when the step under way ends. False if it
        has ended already.
        """
        gone = self._table.take_back(request_id)
        self._counters.cancelled += gone
        return gone

    def finish(self, request_id: int) -> bool:
        """Like `cancel`, for an owner that has all it wants (a stop text came, say)."""
        gone = self._table.take_back(request_id)
        self._counters.completed += gone
        return gone

    def fail(self, request_id: int) -> bool:
        """Like `cancel`, for an owner that could not make use of what came."""
        gone = self._table.take_back(request_id)
        self._counters.failed += gone
        return gone

    def fail_all(self, error: PybatcherError) -> list[Event]:
        """End every request, each with an error like this one. Returns all events not yet taken."""
        for live in list(self._table.live.values()):
            with suppress(EngineError):  # a broken engine may refuse to free what it holds
                self._table.end(live)
            self._counters.note_failed(live.request.request_id, own_copy(error))
        return self.take_events()

    def add_prefix(self, tokens: tuple[int, ...], namespace: str = "") -> SharedPrefix:
        """Compute `tokens` once and keep them; prompts of the namespace that begin so use them.

        They wait until it is there. Each call is to be undone by a `remove_prefix`.
        Raises RequestTooLongError and NoFreeSequenceError when there is no room for it.
        """
        prefix = self._table.prefixes.add(tokens, namespace)
        self._table.head_must_wait = False
        return prefix

    def remove_prefix(self, prefix: SharedPrefix) -> None:
        """Let go of a prefix. Who uses it keeps what it has of it."""
        self._table.prefixes.release(prefix, self._table.remove_sequence)

    @property
    def prefixes(self) -> list[SharedPrefix]:
        """Those that are held."""
        return list(self._table.prefixes)

    def drop_prefixes(self) -> None:
        """Let go of all shared prefixes, whoever holds them."""
        for prefix in list(self._table.prefixes):
            prefix.holders = 1
            self.remove_prefix(prefix)

    # -- steps ------------------------------------------------------------------------------

    def plan(self, now: float) -> StepPlan | None:
        """Say what the next step computes; None when there is nothing to compute.

        Expires what is past its deadline, then seats, within `n_batch` rows:
        one row of every generating request (others give up their KV where it runs out),
        the rest of started prompts (oldest first), then who waits, in turn, as long
        as they fit; guesses at what comes next, in rows that nobody else wants.
        Takes sequences and attaches cached prefixes on the way.
        """
        if self._in_flight is not None:
            raise RuntimeError("plan() was called before the last step was applied")
        self._table.expire(now)
        generating: list[LiveRequest] = []
        seats = self._seats_of_suspect()
        if not seats:
            seats, generating = self._builder.seats()
        if not seats:
            return None
        decode_rows = len(generating)
        prefill_rows = sum(count for _, count in seats[decode_rows:])
        drafts = self._speculation.drafts(
            generating,
            self._n_batch - decode_rows - prefill_rows,
            self._builder.blocks,
            self._kv.block_size,
        )
        in_flight = self._in_flight = [
            (owner, _entry(owner, count, drafts.get(owner.seq_id, ()) if drafts else ()))
            for owner, count in seats
        ]
        plan = StepPlan(
            entries=tuple(entry for _, entry in in_flight),
            decode_rows=decode_rows,
            prefill_rows=prefill_rows,
            draft_rows=sum(map(len, drafts.values())),
        )
        self._table.in_step = True
        self._began = now
        self._speculation.step_begins(plan, now)
        return plan

    def apply(self, result: StepResult, now: float) -> list[Event]:
        """Take in what the planned step gave. Returns all events not yet taken."""
        if self._in_flight is None:
            raise RuntimeError("apply() was called without a planned step")
        seats, self._in_flight = self._in_flight, None
        self._counters.steps += 1
        self._speculation.step_ends(now)
        if self._step_time is not None:
            self._step_time.note(self._builder.load, now - self._began)
        n_rows = 0
        for owner, entry in seats:
            n_tokens, n_draft = len(entry.tokens), entry.n_draft
            n_rows += n_tokens
            owner.num_computed_tokens += n_tokens - n_draft
            if isinstance(owner, SharedPrefix):
                self._table.head_must_wait = False
            elif entry.sample:
                self._take_tokens(owner, n_draft, result)
            elif not owner.request.draws and not owner.ended:
                self._take_answer(owner, entry, result)
        self._counters.computed_tokens += n_rows
        self._builder.let_followers_join()
        self._table.step_over()
        return self.take_events()

    def step_failed(self, error: BaseException) -> list[Event]:
        """The planned step, if there is one, was not computed, and the engine has forgotten all KV.

        Who ran goes on from the tokens it has, at the front of the queue. Who was in the
        step runs alone for a while, and if a step fails with it alone, it ends. Returns
        all events not yet taken. The KvAllocator is not asked before the next `plan`.
        """
        in_flight, self._in_flight = self._in_flight or [], None
        in_step = [owner for owner, _ in in_flight if isinstance(owner, LiveRequest)]
        self._table.lose_kv()
        guilty = self._poison.put(in_step)
        if guilty is not None:
            own = EngineFailedError(
                "this request failed: the engine failed twice when it computed it, the second "
                f"time with it alone in its step: {error!r}"
            )
            own.__cause__ = error
            self._table.fail(guilty, own)
        return self.take_events()

    def take_events(self) -> list[Event]:
        """Everything that happened since events were last taken."""
        return self._counters.take_events()

    # -- questions --------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Nothing runs: what waits, if anything, waits for company and not for room."""
        return (
            self._in_flight is None
            and not self._table.running
            and not self._table.waiting.returned
            and not any(prefix.num_tokens_to_compute for prefix in self._table.prefixes)
        )

    @property
    def n_waiting(self) -> int:
        """Requests that hold no sequence."""
        return len(self._table.waiting)

    @property
    def waiting_since(self) -> float | None:
        """When the request that waits longest was submitted; None when none waits."""
        return self._table.waiting.waiting_since

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of all that have not ended; None when none has one."""
        return self._table.next_deadline

    def statistics(self) -> SchedulerStatistics:
        """Counts so far. See `SchedulerStatistics`."""
        table = self._table
        return self._counters.statistics(
            {
                "queued": len(table.waiting),
                "queued_tokens": table.waiting.tokens,
                "running": len(table.running) - len(table.ended_in_step),
                "proposed_tokens": self._speculation.proposed_tokens,
                "accepted_tokens": self._speculation.accepted_tokens,
            }
        )

    # -- inside -----------------------------------------------------------------------------

    def _seats_of_suspect(self) -> Seats:
        """Those of who has to run alone now, if anybody has."""
        while (suspect := self._poison.current) is not None:
            if seats := self._builder.seats_of(suspect):
                return seats
            if not suspect.ended:
                self._poison.acquit(suspect)
        return []

    def _take_tokens(self, live: LiveRequest, n_draft: int, result: StepResult) -> None:
        """The tokens that the step drew for a request, as far as its output goes."""
        tokens = result.sampled.get(live.seq_id, ())
        why = result.failed.get(live.seq_id) if result.failed else None
        if not tokens and why is None:
            why = "the engine drew no token for it"
        if n_draft:
            n_accepted = len(tokens) - (why is None)  # one came before any guess, or nothing did
            live.num_computed_tokens += n_accepted
            self._speculation.judge(n_draft, n_accepted)
        for token in tokens:
            if not live.ended:
                self._take_token(live, token)
        if why is not None and not live.ended:
            self._table.fail(live, EngineFailedError(f"this request failed: {why}"))

    def _take_answer(self, live: LiveRequest, entry: StepEntry, result: StepResult) -> None:
        """What the step said of a prompt, and with its last tokens the end."""
        request, seq_id = live.request, live.seq_id
        logprobs, vector = result.logprobs.get(seq_id, ()), result.embeddings.get(seq_id)
        why = result.failed.get(seq_id)
        if why is None and (len(logprobs), vector is None) != (
            len(entry.targets),
            entry.pooling is None,
        ):
            why = "the engine gave no answer for it"
        if why is not None:
            self._table.fail(live, EngineFailedError(f"this request failed: {why}"))
            return
        live.logprobs += logprobs
        if not live.num_tokens_to_compute:
            self._table.end(live)
            self._counters.completed += 1
            answer = Answered(request.request_id, tuple(live.logprobs), vector)
            self._counters.events.append(answer)

    def _take_token(self, live: LiveRequest, token: SampledToken) -> None:
        """A request's next token, and whether it is the last one."""
        request, output = live.request, live.output
        output.append(token.token_id)
        reason = request.finish_reason(token.token_id, len(output), live.max_output)
        if reason is not None:
            self._table.end(live)
            self._counters.completed += 1
        self._counters.events.append(Generated(request.request_id, token, reason))


def _entry(owner: LiveRequest | SharedPrefix, count: int, draft: tuple[int, ...]) -> StepEntry:
    if count == 1 and isinstance(owner, LiveRequest) and owner.is_generating:  # most of all
        token = owner.output[-1]
        return StepEntry(owner.seq_id, (token, *draft), True, len(draft))
    tokens = owner.next_tokens(count) + draft
    return StepEntry(
        owner.seq_id,
        tokens,
        owner.draws_after(count),
        len(draft),
        owner.targets_after(count),
        owner.pooling_after(count),
    )
