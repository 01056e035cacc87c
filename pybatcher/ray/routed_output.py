"""`RoutedOutput`: one output, made by one replica, or by several if they die.

Tokens that were delivered are sent along as `output`; by schedule invariance another replica of the
same fingerprint generates the tokens that the lost one would have generated. A replica of another
fingerprint refuses. A paused output, whose reader does not read, leaves its replica, and continues
in the same way when it is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ..calls.completion import Completion
from ..calls.telemetry import RequestEvent, Telemetry
from ..errors import (
    BatcherClosedError,
    DeadlineExceededError,
    EngineFailedError,
    PybatcherError,
    QueueFullError,
)
from ..sidecar.protocol.wire import completion_from_wire, error_from_wire, piece_of, write_call
from ..sidecar.protocol.wire_fields import ANSWERED
from ..sidecar.replay.journal import PendingGeneration
from .replicas import (
    MOST_DEATHS,
    Message,
    ReplicaFullError,
    ReplicaLostError,
    Replicas,
    Routing,
    given_up,
    with_images,
)
from .retry_queue import RetryQueue

__all__ = ["RoutedOutput"]

_LOGGER = logging.getLogger("pybatcher")
_PATIENCE = 0.5  # seconds at a replica while paused; a reader that is only slow returns earlier
_GRACE = 2.0
"""Seconds past a deadline that a replica has to end the request itself."""


class RoutedOutput:
    """One sample of a call, from its submission to its end.

    prefix: hashes of the prompt's blocks, for the router.
    room: the waiting room of all outputs of the service.
    clock: seconds, the same clock as the entry's.
    """

    def __init__(
        self,
        entry: PendingGeneration,
        prefix: bytes,
        replicas: Replicas,
        room: RetryQueue,
        telemetry: Telemetry,
        clock: Callable[[], float],
    ) -> None:
        self._entry = entry
        self._routing = Routing(prefix)
        self._replicas = replicas
        self._room = room
        self._telemetry = telemetry
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._deaths = 0  # consecutive deaths of replicas without a new token
        self._is_read = asyncio.Event()
        # limits the time at a replica once the output is paused
        self._stay: asyncio.Timeout | None = None
        if entry.backpressure is not None:
            entry.unwatch = entry.backpressure.watch(self._set_paused)
        self._set_paused(entry.backpressure is not None and entry.backpressure.is_paused)

    async def run(self) -> None:
        """Fill the entry's reply. Raises only the CancelledError of its own task."""
        deadline = self._entry.deadline
        left = None if deadline is None else deadline - self._clock() + _GRACE
        try:
            async with asyncio.timeout(left):
                is_over = False
                await self._room.enter()
                while not is_over:
                    await self._is_read.wait()
                    is_over = await self._ended_by_a_replica()
        except PybatcherError as error:  # before TimeoutError, since some of them are TimeoutErrors
            self._fail(error)
        except TimeoutError:
            self._expire()
        except asyncio.CancelledError:
            self._tell("cancelled", None)
            raise
        except Exception as defect:
            _LOGGER.exception("a call could not be passed on")
            what = f"what came of this request could not be passed on: {defect!r}"
            self._fail(EngineFailedError(what))
        finally:
            self._room.try_next()
            if self._entry.unwatch is not None:
                self._entry.unwatch()

    def close(self) -> None:
        """Fail the reply because the batcher is closed. The caller must also cancel the task."""
        why = "the batcher of replicas was closed before this request had ended"
        self._entry.reply.fail(BatcherClosedError(why))

    # -- inside -----------------------------------------------------------------------------

    async def _ended_by_a_replica(self) -> bool:
        """Send the call to a replica. Return True at the end, False to try again."""
        entry = self._entry
        n_before = entry.num_tokens
        try:
            return await self._served_while_read()
        except ReplicaLostError as error:
            self._deaths = 1 if entry.num_tokens > n_before else self._deaths + 1
            if self._deaths >= MOST_DEATHS:
                raise given_up("this request") from error
            _LOGGER.warning(
                "a replica was lost; its request goes on with another, after %d tokens: %s",
                entry.num_tokens,
                error,
            )
        except ReplicaFullError:
            entry.starts -= 1
            await self._room.refused()
        except QueueFullError as error:
            if entry.starts <= 1:
                raise
            # The request was accepted once, and all requests of a lost replica return at the same
            # time.
            await asyncio.sleep(error.retry_after)
        return False

    async def _served_while_read(self) -> bool:
        """Send the call to a replica. Return True at the end, False if the output was paused."""
        try:
            async with asyncio.timeout(None) as stay:
                self._stay = stay
                await self._serve()
        except TimeoutError as error:
            if isinstance(error, PybatcherError) or not stay.expired():
                raise
            return False
        finally:
            self._stay = None
        return True

    def _set_paused(self, paused: bool) -> None:
        """Have the output leave its replica soon because it is paused, or have it return."""
        if paused:
            self._is_read.clear()
        else:
            self._is_read.set()
        if self._stay is not None and not self._stay.expired():
            self._stay.reschedule(self._loop.time() + _PATIENCE if paused else None)

    async def _serve(self) -> None:
        entry = self._entry
        call = entry.next_call(self._clock())
        if call.timeout is not None and call.timeout <= 0:
            self._expire()
            return
        method = "generate" if call.chat is None else "chat"
        params = with_images(write_call(call, id=None, stream=True), entry.images)
        # the replica that samples the first token may have any fingerprint
        if not entry.num_tokens:
            self._routing = replace(self._routing, fingerprint="")
        entry.starts += 1
        async with aclosing(self._replicas.stream(method, params, self._routing)) as answers:
            async for messages in answers:
                for message in messages:
                    if self._take(message):
                        return
        raise ReplicaLostError("its answer has no end")

    def _take(self, message: Message) -> bool:
        """Process a message of a replica. Return True if it is the last one."""
        name, value = message
        if name == "began":
            self._routing = replace(self._routing, fingerprint=str(value))
            self._room.try_next()
        elif name == "deltas":
            for delta in ANSWERED.items(value, "the deltas"):
                self._take_delta(delta)
        elif name == "end":
            self._finish(value)
        elif name == "full":
            raise ReplicaFullError
        else:
            raise error_from_wire(value)
        return name == "end"

    def _take_delta(self, delta: dict[str, Any]) -> None:
        entry = self._entry
        piece = piece_of(delta)
        entry.take(piece, self._clock())
        if entry.reply.streams:
            entry.reply.push(replace(piece, index=entry.index) if entry.index else piece)

    def _finish(self, result: Any) -> None:
        entry = self._entry
        if isinstance(result, dict):
            result = {**result, "logprobs": None}  # the deltas contained them
        whole = self._with_own_times(entry.whole(completion_from_wire(result), self._clock()))
        self._tell(whole.finish_reason, whole)
        entry.reply.finish(whole, entry.index)

    def _with_own_times(self, whole: Completion) -> Completion:
        """Return the completion with times of this clock; a replica may be on another machine."""
        entry, theirs, now = self._entry, whole.timeline, self._clock()
        times = tuple(entry.token_times)
        first = times[0] if times else now
        queued = 0.0 if entry.starts > 1 else theirs.queued
        return replace(
            whole,
            timeline=replace(
                theirs,
                submitted=entry.submitted,
                admitted=min(entry.submitted + queued, first),
                first_token=first,
                finished=now,
                token_times=times,
            ),
        )

    def _expire(self) -> None:
        """End an output past its deadline, if its replica has not done so."""
        entry, now = self._entry, self._clock()
        if entry.token_ids:
            whole = entry.expired(now)
            self._tell(whole.finish_reason, whole)
            entry.reply.finish(whole, entry.index)
            return
        waited = now - entry.submitted
        why = f"no token came within {waited:.3f} s; raise timeout, or send less at once"
        self._fail(DeadlineExceededError(why))

    def _fail(self, error: PybatcherError) -> None:
        self._tell(type(error).__name__, None)
        self._entry.reply.fail(error)

    def _tell(self, reason: str, whole: Completion | None) -> None:
        """Emit the event of the end, with this process's times."""
        if not self._telemetry.has_handlers:
            return
        entry, now = self._entry, self._clock()
        times = tuple(entry.token_times)
        self._telemetry.emit(
            RequestEvent(
                when=now,
                request_id=entry.number,
                namespace=entry.call.namespace or "",
                priority=entry.call.priority,
                finish_reason=reason,
                prompt_tokens=entry.prompt_tokens if whole is None else whole.usage.prompt_tokens,
                cached_tokens=0 if whole is None else whole.usage.cached_tokens,
                generated_tokens=entry.num_tokens,
                queued=0.0 if whole is None else whole.timeline.queued,
                ttft=times[0] - entry.submitted if times else None,
                itl=tuple(later - sooner for sooner, later in pairwise(times)),
                total=now - entry.submitted,
                preemptions=0 if whole is None else whole.timeline.preemptions,
                recomputed_tokens=0 if whole is None else whole.timeline.recomputed_tokens,
            )
        )
