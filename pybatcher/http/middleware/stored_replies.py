"""`StoredReplies`: the responses by idempotency key of one namespace, within limits."""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass

from ..base.http_error import HttpError
from .stored_reply import Answer, StoredReply

__all__ = ["HEADER", "KeepLimits", "StoredReplies"]

HEADER = "idempotency-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLimits:
    """Limits on the responses of one namespace, in number, size and time.

    grace: seconds that a request continues without a client.
    most_alone: requests without a client; one more is cancelled at once.
    keep: seconds that a response is stored after its end.
    most_kept: ended responses; the oldest are evicted.
    most_bytes: bytes of all responses together; one response can have a quarter of them.
    """

    grace: float = 30.0
    most_alone: int = 8
    keep: float = 600.0
    most_kept: int = 256
    most_bytes: int = 16 * 2**20


class StoredReplies:
    """Responses by their keys, the oldest first."""

    def __init__(self, limits: KeepLimits) -> None:
        self._limits = limits
        self._responses: dict[str, StoredReply] = {}
        self._n_bytes = 0
        self._timers: dict[StoredReply, asyncio.TimerHandle] = {}
        self._tasks: dict[StoredReply, asyncio.Task[None]] = {}  # the responses in progress

    def find(self, key: str, request: bytes) -> StoredReply | None:
        """Return the response to a key. None: there is none. Raises HttpError."""
        found = self._responses.get(key)
        if found is None:
            return None
        if found.request != request:
            raise HttpError(
                422,
                f"this {HEADER} was used for another request; give each one of its own",
                code="idempotency_key_reused",
                param=HEADER,
            )
        if found.is_cut:
            raise HttpError(
                409,
                f"the response to this {HEADER} is too long to be kept, and is sent only once",
                code="response_too_long",
                param=HEADER,
                headers={"x-should-retry": "false"},
            )
        return found

    def begin(self, key: str, request: bytes, answer: Answer, body: bytes) -> StoredReply:
        """Start the response to a new key, and return it."""

        def has_room(size: int) -> bool:
            response = this()
            return response is not None and self._has_room(response, size)

        made = StoredReply(request, has_room)
        this = weakref.ref(made)  # otherwise the response would be part of a reference cycle
        self._responses[key] = made
        task = asyncio.create_task(made.make(answer, body), name="pybatcher-idempotent")
        self._tasks[made] = task
        task.add_done_callback(lambda _: self._ended(key, made))
        return made

    def join(self, response: StoredReply) -> object:
        """Return a new client of a response."""
        if not response.has_ended:
            self._stop_timer(response)
        return response.join()

    def leave(self, key: str, response: StoredReply, client: object) -> None:
        """Remove a client. Cancels a response without clients after the grace time, or at once if
        there are too many of them.
        """
        response.leave(client)
        if response.has_ended or response.n_clients:
            return
        n_alone = sum(one in self._timers for one in self._tasks)
        if response.is_cut or n_alone >= self._limits.most_alone:
            self._abandon(key, response)
        else:
            self._start_timer(response, self._limits.grace, key)

    # -- its end ----------------------------------------------------------------------------

    def _ended(self, key: str, response: StoredReply) -> None:
        del self._tasks[response]
        response.drop_error()
        if self._responses.get(key) is not response:  # it was abandoned
            return
        self._stop_timer(response)
        if not response.is_worth_keeping:
            self._forget(key)
            return
        self._responses[key] = self._responses.pop(key)  # move it to the end of the ended responses
        self._start_timer(response, self._limits.keep, key)
        if len(ended := self._ended_keys()) > self._limits.most_kept:
            self._forget(ended[0])

    def _abandon(self, key: str, response: StoredReply) -> None:
        response.abandon()
        self._forget(key)

    def _forget(self, key: str) -> None:
        response = self._responses.pop(key)
        self._stop_timer(response)
        self._n_bytes -= response.n_bytes

    def _ended_keys(self) -> list[str]:
        return [key for key, response in self._responses.items() if response.has_ended]

    def _start_timer(self, response: StoredReply, seconds: float, key: str) -> None:
        loop = asyncio.get_running_loop()
        self._timers[response] = loop.call_later(seconds, self._abandon, key, response)

    def _stop_timer(self, response: StoredReply) -> None:
        if (timer := self._timers.pop(response, None)) is not None:
            timer.cancel()

    # -- room -------------------------------------------------------------------------------

    def _has_room(self, response: StoredReply, size: int) -> bool:
        """Reserve bytes for a response. Evicts ended responses if necessary."""
        limit = self._limits.most_bytes
        if 4 * (response.n_bytes + size) > limit:
            return False
        if self._n_bytes + size > limit:
            for key in self._ended_keys():
                if self._n_bytes + size <= limit:
                    break
                self._forget(key)
            else:
                return self._n_bytes + size <= limit
        self._n_bytes += size
        return True
