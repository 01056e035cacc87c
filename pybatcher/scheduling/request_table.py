"""`RequestTable`: every request that has not ended, and whether it waits or runs."""

from __future__ import annotations

from collections.abc import Iterator

from ..config import SchedulerConfig
from ..errors import PybatcherError
from .counters import SchedulerCounters
from .deadlines import Deadlines
from .events import Preempted
from .kv_allocator import KvAllocator
from .prefix import SharedPrefixes
from .queue import WaitingQueue
from .request import LiveRequest, Request

__all__ = ["RequestTable"]


class RequestTable:
    """One owner of where requests are, so that each is in one place and ends once.

    running: those with a sequence, by id, in the order of their admission.
    in_step: the KV belongs to the engine; who ends keeps its sequence until `step_over`.
    head_must_wait: whoever is next was found not to fit, and nothing has been freed since.
    """

    def __init__(self, config: SchedulerConfig, kv: KvAllocator) -> None:
        self._kv = kv
        self._aging = config.priority_aging
        self._deadlines = Deadlines()
        self._doomed_sequences: list[int] = []
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

    def add(self, request: Request, now: float) -> None:
        """A newcomer waits. QueueFullError; then nothing has changed."""
        n_tokens = len(request.prompt) + len(request.output)
        self.waiting.check_room(n_tokens, request.tenant)
        self.counters.submitted += 1
        live = LiveRequest(
            request=request,
            submitted=now,
            seniority=now + request.priority * self._aging,
            number=self.counters.submitted,
            max_output=request.max_output(self._kv.max_sequence_length),
            output=list(request.output),
            num_lost_tokens=n_tokens - 1 if request.output else 0,
        )
        head = self.waiting.head
        self.waiting.append(live)
        self.live[request.request_id] = live
        self._deadlines.add(live)
        if self.waiting.head is not head:
            self.head_must_wait = False

    def take_back(self, request_id: int) -> bool:
        """End a request wherever it is; False if it has ended already."""
        live = self.live.get(request_id)
        if live is None:
            return False
        self.end(live)
        return True

    def end(self, live: LiveRequest) -> None:
        """Nothing more comes of it. Its KV is free now, or after the step that may compute it."""
        request_id = live.request.request_id
        live.ended = True
        del self.live[request_id]
        if request_id not in self.running:
            self.waiting.remove(live)
            self.head_must_wait = False  # it may have been the head
        elif self.in_step:
            self.ended_in_step.append(live)
        else:
            self._free(live)

    def fail(self, live: LiveRequest, error: PybatcherError) -> None:
        """End it with an error."""
        self.end(live)
        self.counters.note_failed(live.request.request_id, error)

    def expire(self, now: float) -> None:
        """End whose deadline has passed. What follows happens at this time."""
        self._now = now
        for live in self._deadlines.passed(now):
            self.end(live)
            self.counters.note_expired(live.request.request_id)

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline; None when nobody has one."""
        return self._deadlines.next

    @property
    def admitted(self) -> Iterator[LiveRequest]:
        """Those who run, or have run and wait to go on."""
        yield from self.running.values()
        yield from self.waiting.returned

    def preempt(self, live: LiveRequest) -> None:
        """Take its KV for others. It waits, before all newcomers.

        What of its KV nobody else needs stays cached, to be given away from its end on:
        so in effect only the tail goes that is needed, and what is left is found again.
        """
        self._kv.seq_remove(live.seq_id)
        del self.running[live.request.request_id]
        live.lose_kv()
        live.num_preemptions += 1
        self.counters.preemptions += 1
        self.counters.events.append(Preempted(live.request.request_id))
        self.waiting.come_back(live)
        self.head_must_wait = False

    def run(self, live: LiveRequest) -> None:
        """Who waited has been given a sequence."""
        self.waiting.admit(live, self._now)
        self.running[live.request.request_id] = live

    def step_over(self) -> None:
        """The KV is free to be changed again."""
        self.in_step = False
        while self.ended_in_step:
            self._free(self.ended_in_step.pop())
        while self._doomed_sequences:
            self._kv.seq_remove(self._doomed_sequences.pop())

    def remove_sequence(self, seq_id: int) -> None:
        """Of a shared prefix that nobody holds any more."""
        if self.in_step:
            self._doomed_sequences.append(seq_id)
        else:
            self._kv.seq_remove(seq_id)
        self.head_must_wait = False

    def lose_kv(self) -> None:
        """The engine has forgotten every sequence: all who ran wait, before all newcomers."""
        self.in_step = False
        self.ended_in_step.clear()
        self._doomed_sequences.clear()
        self.prefixes.lose_kv()
        for request_id, live in self.live.items():
            if request_id in self.running:
                live.outlived_engine = True
                live.lose_kv()
                self.waiting.come_back(live)
            live.seq_id, live.leader = -1, None
        self.running.clear()
        self.head_must_wait = False

    def _free(self, live: LiveRequest) -> None:
        del self.running[live.request.request_id]
        self._kv.seq_remove(live.seq_id)
        live.seq_id = -1
        self.head_must_wait = False
