"""`RequestTable`: every request that has not ended, and its state: waiting, running or parked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import InvalidRequestError, PybatcherError
from ..params.config import SchedulerConfig
from .containment import WorkFor
from .counters import SchedulerCounters
from .deadlines import Deadlines
from .events import Preempted
from .kv_allocator import KvAllocator, free_sequence
from .prefix import SharedPrefix, SharedPrefixes
from .queue import WaitingQueue
from .request import LiveRequest, Request

__all__ = ["RequestTable"]

_PATIENCE = 0.1  # seconds; a client may send its next request right after an answer


class RequestTable:
    """The only owner of the state of requests, so that each has one state and ends once.

    running: requests with a sequence, by id, in the order of their admission.
    in_step: the KV belongs to the engine; a request that ends keeps its sequence until `step_over`.
    head_must_wait: the next request did not fit, and nothing has been freed since.
    paused: requests under back-pressure, whose output is not read. parked: paused requests that
        neither wait nor run, because others are in flight. They hold no KV; their cached blocks may
        be evicted.
    """

    def __init__(self, config: SchedulerConfig, kv: KvAllocator) -> None:
        self._kv = kv
        self._aging = config.priority_aging
        self._deadlines = Deadlines()
        self._sequences_to_free: list[int] = []
        self._now = 0.0
        self.counters = SchedulerCounters()
        self.prefixes = SharedPrefixes(kv, config.max_prefixes)
        self.waiting = WaitingQueue(
            config.max_queue_requests, config.max_queue_tokens, config.output_reserve
        )
        self.running: dict[int, LiveRequest] = {}
        self.live: dict[int, LiveRequest] = {}
        self.ended_in_step: list[LiveRequest] = []
        self.in_step = False
        self.head_must_wait = False
        self.paused: dict[int, LiveRequest] = {}
        self.parked: dict[int, LiveRequest] = {}
        self._had_others = False  # at the last plan
        self._others_until = 0.0

    def add(self, request: Request, now: float) -> None:
        """Queue a new request.

        Raises QueueFullError past a limit of the queue, and the errors of values of wrong types.
        Nothing has changed then.
        """
        if request.request_id in self.live:
            raise InvalidRequestError(
                f"request_id is {request.request_id!r}, which a request in flight has: "
                "choose another",
                field="request_id",
            )
        n_tokens = len(request.prompt) + len(request.output)
        self.waiting.check_room(n_tokens, request.tenant)
        live = LiveRequest(
            request=request,
            submitted=now,
            seniority=now + float(request.priority * self._aging),
            number=self.counters.submitted + 1,
            max_output=request.max_output(self._kv.max_sequence_length),
            output=list(request.output),
            num_lost_tokens=n_tokens - 1 if request.output else 0,
        )
        head = self.waiting.head
        try:
            self._deadlines.add(live)
            self.waiting.append(live)
        except BaseException:
            live.ended = True
            self.waiting.discard(live)
            raise
        self.live[request.request_id] = live
        self.counters.submitted += 1
        if self.waiting.head is not head:
            self.head_must_wait = False

    def take_back(self, request_id: int) -> bool:
        """End a request without an event; False if it has ended already."""
        live = self.live.get(request_id)
        if live is None:
            return False
        self.end(live)
        return True

    def end(self, live: LiveRequest) -> None:
        """Remove a request from the table in any state.

        Its KV is freed now, or by `step_over` if the current step may compute it. Queues no event.
        Raises EngineFailedError if the engine does not free it.
        """
        request_id = live.request.request_id
        live.ended = True
        self.live.pop(request_id, None)
        self.paused.pop(request_id, None)
        self.parked.pop(request_id, None)
        self.head_must_wait = False
        if self.in_step and request_id in self.running:
            self.ended_in_step.append(live)
            return
        self.running.pop(request_id, None)
        self.waiting.discard(live)
        self._free(live)

    def fail(self, live: LiveRequest, error: PybatcherError) -> None:
        """Queue `Failed` with the error, and end the request."""
        live.ended = True  # even if its KV cannot be freed
        self.counters.note_failed(live.request.request_id, error)
        self.end(live)

    def fail_prefix(self, prefix: SharedPrefix, error: PybatcherError) -> None:
        """Remove a shared prefix, free its KV, and set its `error` for its holders."""
        self.prefixes.fail(prefix, error, self.remove_sequence)
        self.head_must_wait = False

    def expire(self, now: float) -> None:
        """Queue `Expired` for each request past its deadline, and end it. Sets the table's time."""
        self._now = now
        while (live := self._deadlines.pop_passed(now)) is not None:
            live.ended = True  # even if its KV cannot be freed
            self.counters.note_expired(live.request.request_id)
            self.end(live)

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline; None when no request has one."""
        return self._deadlines.next

    @property
    def admitted(self) -> Iterator[LiveRequest]:
        """Requests that run, or have run and wait to continue."""
        yield from self.running.values()
        yield from self.waiting.returned
        for others in (self.waiting.newcomers, self.parked.values()):
            yield from (live for live in others if live.was_admitted)

    @property
    def without_sequence(self) -> Iterator[LiveRequest]:
        """Requests that wait in the queue or are parked."""
        yield from self.waiting
        yield from self.parked.values()

    def preempt(self, live: LiveRequest) -> None:
        """Free a running request's KV for others. The request waits ahead of all newcomers.

        Its blocks stay cached and are evicted from the end on. In effect only the tail that others
        need is lost, and the rest is found again.
        """
        self._free(live)
        del self.running[live.request.request_id]
        live.lose_kv()
        live.num_preemptions += 1
        self.counters.preemptions += 1
        self.counters.events.append(Preempted(live.request.request_id))
        self.waiting.come_back(live)
        self.head_must_wait = False

    def run(self, live: LiveRequest) -> None:
        """Move a request that got a sequence from the queue to the running requests."""
        if self.parked.pop(live.request.request_id, None) is None:
            self.waiting.admit(live, self._now)
        self.running[live.request.request_id] = live

    # -- back-pressure ------------------------------------------------------------------------

    def pause(self, request_ids: Iterable[int], paused: bool) -> None:
        """Pause or resume requests; resumed requests wait for their turn.

        A request that ran waits as if it were submitted now. A client that pauses and resumes again
        and again delays others no more than a client that submits again and again.
        """
        for request_id in request_ids:
            live = self.live.get(request_id)
            if live is not None and paused:
                self.paused[request_id] = live
            elif self.paused.pop(request_id, None) is not None and request_id in self.parked:
                self._unpark(self.parked[request_id])

    def park_paused(self, now: float, spared: LiveRequest | None = None) -> None:
        """Park paused requests while others are in flight, and some time after them.

        None are parked while a shared prefix waits. The prefix waits for all admitted requests, and
        newcomers wait for the prefix: if nothing runs any more, the admitted requests continue at
        once.

        spared: a request that runs alone now, which is not parked.
        """
        if self.prefixes.waiting:
            if not self.running and not self.waiting.returned:
                self._let_admitted_go_on()
            return
        if not self.paused:
            self._had_others = False
            return
        self._had_others = self._has_others
        if self._had_others:
            if len(self.parked) < len(self.paused):
                for live in [live for i, live in self.paused.items() if i not in self.parked]:
                    if live is not spared:
                        self._park(live)
        elif now >= self._others_until + _PATIENCE:
            for live in list(self.parked.values()):
                self._unpark(live)

    @property
    def resumes_at(self) -> float | None:
        """The time when parked requests continue if no other arrives; None: none will."""
        return None if self._has_others or not self.parked else self._others_until + _PATIENCE

    @property
    def _has_others(self) -> bool:
        return len(self.live) > len(self.paused)

    def _park(self, live: LiveRequest) -> None:
        with WorkFor("park it", live):
            if live.request.request_id in self.running:
                self._free(live)
                del self.running[live.request.request_id]
                live.lose_kv()
            else:
                self.waiting.discard(live)
            self.parked[live.request.request_id] = live
            self.head_must_wait = False

    def _let_admitted_go_on(self) -> None:
        """Queue all requests that have run, parked ones too, ahead of all newcomers."""
        for live in list(self.admitted):
            self.parked.pop(live.request.request_id, None)
            self.waiting.discard(live)
            self.waiting.come_back(live)
            self.head_must_wait = False

    def _unpark(self, live: LiveRequest) -> None:
        del self.parked[live.request.request_id]
        if live.was_admitted:
            live.seniority = self._now + float(live.request.priority * self._aging)
        self.waiting.append_again(live)
        self.head_must_wait = False

    # -- the end of steps ---------------------------------------------------------------------

    def step_over(self, now: float) -> None:
        """Free the KV of requests that ended during the step. Raises EngineFailedError."""
        if self._had_others:
            self._others_until = now
        self.in_step = False
        while self.ended_in_step:
            live = self.ended_in_step.pop()
            self.running.pop(live.request.request_id, None)
            self._free(live)
        while self._sequences_to_free:
            free_sequence(self._kv, self._sequences_to_free.pop())

    def remove_sequence(self, seq_id: int) -> None:
        """Free a shared prefix's sequence, now or after the current step."""
        self.head_must_wait = False
        if self.in_step:
            self._sequences_to_free.append(seq_id)
        else:
            free_sequence(self._kv, seq_id)

    def lose_kv(self) -> None:
        """Queue all running requests ahead of all newcomers: the engine forgot every sequence.

        It can be called again after an exception.
        """
        self.in_step = False
        self.ended_in_step.clear()
        self._sequences_to_free.clear()
        self.head_must_wait = False
        self.prefixes.lose_kv()
        for live in [live for live in self.live.values() if live.ended]:  # interrupted in `end`
            del self.live[live.request.request_id]
            self.paused.pop(live.request.request_id, None)
            self.parked.pop(live.request.request_id, None)
        for live in [live for live in self.waiting if live.ended]:
            self.waiting.discard(live)
        while self.running:
            _, live = self.running.popitem()
            if live.ended:
                live.seq_id = -1
                continue
            with WorkFor("let it wait for the engine's restart", live):
                live.outlived_engine = True
                live.lose_kv()
                self.waiting.come_back(live)

    def _free(self, live: LiveRequest) -> None:
        seq_id, live.seq_id = live.seq_id, -1
        if seq_id >= 0:
            free_sequence(self._kv, seq_id)
