"""`PendingCalls`: sends calls over a link, and sends them again over the next if it is lost.

add ──> journal ──link_made──> sent ──deltas──> ... ──> ended, removed
           ^                     │
           └──── link_lost ──────┘      if `replays`; else each ends with the error
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from ...errors import (
    ConnectionLostError,
    DeadlineExceededError,
    EngineFailedError,
    PybatcherError,
    QueueFullError,
)
from ...scheduling import own_copy
from ..protocol.wire import completion_from_wire, piece_of, write_call
from ..protocol.wire_images import UnknownImageError
from .journal import Entry, PendingGeneration, PendingQuestion
from .link import Link
from .poison import PoisonCalls

__all__ = ["PendingCalls"]

_RETRY_AFTER = 1.0  # seconds
_MOST_RESENT = 2  # times that images of a call are sent again over one link
_NOTIFY_PAUSE = 0.05  # seconds between two `aside` notifications of a call

_LOGGER = logging.getLogger("pybatcher")


class PendingCalls:
    """The journal of all calls in flight, and the link that they are sent over, if there is one.

    replays: calls survive the loss of a link: they are sent again over the next one, with the
        tokens they have. False: they end with ConnectionLostError.
    suspects: a lost link means that a worker died, and the call that caused it is searched for.
    most_bytes: most bytes of the calls in the journal and of their outputs, approximately; above it
        further calls get QueueFullError.
    on_work: called when a call is added.
    numbers: the ids of calls; shared by several `PendingCalls` whose calls need unique ids.

    For one event loop; constructed while it runs. All times: seconds of `clock`.
    """

    def __init__(
        self,
        *,
        replays: bool,
        suspects: bool = False,
        clock: Callable[[], float] = time.monotonic,
        most_bytes: int = 2**28,
        on_work: Callable[[], None] | None = None,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.replays = replays
        self.clock = clock
        self._suspects = suspects
        self._poison = PoisonCalls()  # without suspects unless `suspects`
        self._most_bytes = most_bytes
        self._bytes = 0
        self._on_work = on_work
        self._numbers = count(1) if numbers is None else numbers
        self._journal: dict[int, Entry] = {}
        self._cut: list[Entry] = []  # calls in flight when the link was lost
        self._link: Link | None = None
        self._failure: PybatcherError | None = None
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.replayed_requests = 0

    @property
    def n_in_flight(self) -> int:
        """Number of calls that have not ended."""
        return len(self._journal)

    @property
    def link(self) -> Link | None:
        """The link that calls are sent over; None while there is none and calls wait."""
        return self._link

    def link_made(self, link: Link) -> None:
        """Use a new link: send all waiting calls over it, in the order of their numbers."""
        self._link = link
        self._send_waiting()

    @property
    def n_cut(self) -> int:
        """Number of calls that were in flight when the link was lost, until `link_lost`."""
        return sum(not entry.ended for entry in self._cut)

    def link_lost(
        self,
        error: PybatcherError,
        *,
        final: bool = False,
        is_evidence: bool = True,
        with_tokens: bool = False,
    ) -> bool:
        """Drop the link that was lost. Call it after each of its calls has ended.

        final: no other link follows: every call gets `error`, and later ones too.
        is_evidence: True if one of the calls may be the cause. with_tokens: as in
            `PoisonCalls.died`.
        Returns True if a call was found to be the cause, and got an error.
        """
        self._link = None
        cut, self._cut = self._cut, []
        if final:
            self.fail_all(error)
            return False
        guilty = None
        if self._suspects and is_evidence:
            guilty = self._poison.died(cut, with_tokens=with_tokens)
            if isinstance(guilty, Entry):
                own = EngineFailedError(
                    "this request failed: workers died while they computed it, the last two with "
                    f"nothing else to do: {error}"
                )
                self._fail(guilty, own)
        for entry in list(self._journal.values()):
            self._watch_deadline(entry)
        return guilty is not None

    def fail_all(self, error: PybatcherError) -> None:
        """Fail every call with this error, and later ones too."""
        self._failure = error
        for entry in list(self._journal.values()):
            self._withdraw(entry)
            self._fail(entry, own_copy(error))

    def fail_begun(self, error: PybatcherError) -> None:
        """Fail the calls that have tokens already with this error."""
        for entry in list(self._journal.values()):
            if entry.num_tokens:
                self._withdraw(entry)
                self._fail(entry, own_copy(error))

    async def idle(self) -> None:
        """Wait until no call is in flight."""
        while self._journal:  # calls may have been added before this task runs again
            await self._is_idle.wait()

    # -- calls ------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raise the error that a call added now would get, if any."""
        if self._failure is not None:
            raise own_copy(self._failure)

    def new_numbers(self, n: int) -> range:
        """Return numbers for `n` entries."""
        numbers = [next(self._numbers) for _ in range(n)]
        return range(numbers[0], numbers[-1] + 1)

    def add(self, *entries: Entry) -> None:
        """Send calls, all samples of one or a question, now or as soon as there is a link.

        Raises QueueFullError, for all of them.
        """
        n_bytes = sum(entry.n_bytes for entry in entries)
        if self._journal and self._bytes + n_bytes > self._most_bytes:
            raise QueueFullError(
                f"the calls in flight take {self._bytes} bytes, of {self._most_bytes} that they "
                f"may take, and this one takes {n_bytes}; send it again later",
                retry_after=_RETRY_AFTER,
            )
        for entry in entries:
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        self._bytes += entry.n_bytes
        self._journal[entry.number] = entry
        if entry.backpressure is not None:
            entry.unwatch = entry.backpressure.watch(lambda _: self._send_paused(entry))
        self._is_idle.clear()
        if self._on_work is not None:
            self._on_work()
        if self._link is None or self._poison.suspects:
            self._watch_deadline(entry)
        else:
            self._send(entry)

    def cancel(self, numbers: range) -> None:
        """Drop calls; their replies get no further results. From any thread; never waits."""
        with suppress(RuntimeError):  # the loop is closed, and all calls with it
            self._loop.call_soon_threadsafe(self._cancel, numbers)

    # -- inside -----------------------------------------------------------------------------

    def _send_waiting(self) -> None:
        """Send the waiting calls: all, or only the first suspect if there are suspects."""
        suspects = self._poison.suspects
        entries = suspects[:1] if suspects else list(self._journal.values())
        for entry in entries:
            assert isinstance(entry, Entry)
            if self._link is not None and entry.call_id is None and not entry.ended:
                self._send(entry)

    def _send(self, entry: Entry) -> None:
        link = self._link
        assert link is not None
        now = self.clock()
        if entry.deadline is not None and entry.deadline <= now:
            self._expire(entry)
            return
        end = partial(self._ended, entry)
        self.replayed_requests += entry.starts > 0
        try:
            if entry.images:
                link.send_images(entry.images)
            if isinstance(entry, PendingQuestion):
                entry.call_id = link.start_call(entry.method, entry.next_params(now), end)
            elif isinstance(entry, PendingGeneration):
                call = entry.next_call(now)
                streams = self.replays or entry.reply.streams
                method = "generate" if call.chat is None else "chat"
                params = write_call(call, id=None, stream=streams)
                take = partial(self._take, entry) if streams else None
                entry.call_id = link.start_call(method, params, end, take)
        except ConnectionLostError as error:
            if not self.replays:
                self._fail(entry, error)
        except PybatcherError as error:
            self._fail(entry, error)
        except Exception as defect:
            self._fail_unexpectedly(entry, defect)
        else:
            entry.starts += 1
            entry.sent_paused = entry.sent_lately = False
            self._send_paused(entry)

    def _send_paused(self, entry: Entry) -> None:
        """Notify the other end of the call's pause state, if it has changed.

        A client may change it at any rate; the other end is notified at most every `_NOTIFY_PAUSE`.
        """
        if entry.sent_lately or entry.backpressure is None or entry.call_id is None or entry.ended:
            return
        paused = entry.backpressure.is_paused
        if self._link is None or paused == entry.sent_paused:
            return
        self._link.notify("aside", [entry.call_id, paused])
        entry.sent_paused, entry.sent_lately = paused, True
        self._loop.call_later(_NOTIFY_PAUSE, self._send_paused_again, entry)

    def _send_paused_again(self, entry: Entry) -> None:
        entry.sent_lately = False
        self._send_paused(entry)

    def _take(self, entry: PendingGeneration, delta: dict[str, Any]) -> None:
        """Process a delta of a call. An exception ends that call only."""
        piece = piece_of(delta)
        self._bytes += entry.take(piece, self.clock())
        if entry.reply.streams:
            try:
                entry.reply.push(replace(piece, index=entry.index) if entry.index else piece)
            except Exception as error:
                self._fail_unexpectedly(entry, error)
        self._next_suspect()

    def _ended(self, entry: Entry, error: PybatcherError | None, result: Any) -> None:
        entry.call_id = None
        if entry.ended:
            return
        if isinstance(error, ConnectionLostError):
            self._cut.append(entry)
            if not self.replays:
                self._fail(entry, error)
            return
        if isinstance(error, UnknownImageError) and entry.n_resent < _MOST_RESENT and self._link:
            self._link.forget_images(entry.images)
            entry.n_resent += 1
            entry.starts -= 1
            self._send(entry)
            return
        if isinstance(error, QueueFullError) and entry.starts > 1:
            # The call was accepted once, and all calls are replayed at the same time, so it tries
            # again.
            self._loop.call_later(error.retry_after, self._send_waiting)
            self._watch_deadline(entry)
            return
        try:
            if error is not None:
                self._fail(entry, error)
            elif isinstance(entry, PendingQuestion):
                self._forget(entry)
                entry.end(None, result)
            elif isinstance(entry, PendingGeneration):
                if (self.replays or entry.reply.streams) and isinstance(result, dict):
                    result.pop("logprobs", None)  # the deltas contained them
                whole = entry.whole(completion_from_wire(result), self.clock())
                self._forget(entry)
                entry.reply.finish(whole, entry.index)
        except PybatcherError as broken:
            self._fail(entry, broken)
        except Exception as defect:
            self._fail_unexpectedly(entry, defect)

    def _next_suspect(self) -> None:
        """If the suspect that runs alone is cleared, send the next one, or all if none is left."""
        if not self._poison.suspects:
            return
        passed = self._poison.acquit()
        while passed is not None:
            if isinstance(passed, Entry) and not passed.ended:
                self._withdraw(passed)  # it is sent again when all suspects have run alone
                self._watch_deadline(passed)
            passed = self._poison.acquit()
        self._send_waiting()

    def _cancel(self, numbers: range) -> None:
        for number in numbers:
            entry = self._journal.get(number)
            if entry is not None:
                self._withdraw(entry)
                self._forget(entry)

    def _withdraw(self, entry: Entry) -> None:
        """Cancel a call at the other end of the link; it may be sent again."""
        if entry.call_id is not None and self._link is not None:
            self._link.cancel(entry.call_id)
        entry.call_id = None

    def _fail(self, entry: Entry, error: PybatcherError) -> None:
        self._forget(entry)
        # the frames of its traceback refer to the entry, which keeps the error
        error = error.with_traceback(None)
        if isinstance(entry, PendingQuestion):
            entry.end(error, None)
        elif isinstance(entry, PendingGeneration):
            entry.reply.fail(error)
            self._cancel(entry.siblings)  # the other samples of the failed reply

    def _fail_unexpectedly(self, entry: Entry, defect: Exception) -> None:
        _LOGGER.exception("a call could not be passed on")
        self._withdraw(entry)
        own = EngineFailedError(f"what came of this request could not be passed on: {defect!r}")
        self._fail(entry, own)

    def _forget(self, entry: Entry) -> None:
        """Remove a call that has ended, in whatever way. No reference to it remains here."""
        entry.ended = True
        if self._journal.pop(entry.number, None) is None:
            return
        self._bytes -= entry.n_bytes
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.unwatch is not None:
            entry.unwatch()
        entry.timer = entry.unwatch = None
        if not self._journal:
            self._is_idle.set()
        # it may be the suspect that runs alone, for which all others wait
        if self._poison.suspects:
            self._loop.call_soon(self._next_suspect)

    def _watch_deadline(self, entry: Entry) -> None:
        """Expire a call at its deadline if it still waits then, as no worker has it."""
        if entry.deadline is None:
            return
        if entry.timer is not None:
            entry.timer.cancel()
        left = max(0.0, entry.deadline - self.clock())
        entry.timer = self._loop.call_later(left, self._expire_if_waiting, entry)

    def _expire_if_waiting(self, entry: Entry) -> None:
        if entry.call_id is None and not entry.ended:
            self._expire(entry)

    def _expire(self, entry: Entry) -> None:
        now = self.clock()
        if isinstance(entry, PendingGeneration) and entry.token_ids:
            self._forget(entry)
            entry.reply.finish(entry.expired(now), entry.index)
            return
        what = "token" if isinstance(entry, PendingGeneration) else "answer"
        self._fail(
            entry,
            DeadlineExceededError(
                f"no {what} came within {now - entry.submitted:.3f} s; raise timeout, or "
                "send less at once"
            ),
        )
