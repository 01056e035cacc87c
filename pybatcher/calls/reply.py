"""`Reply`: the results of one call, written by the service and read by the caller.

A call is one request of the scheduler, or `n` of them: several samples of one prompt. Sample 0
    equals the output of a request with n = 1. The seed of sample i is the i-th number that
    splitmix64 (Steele, Lea and Flood 2014) derives from the request's seed, so the samples of a
    seed do not depend on n or on other requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from ..errors import PybatcherError
from .backpressure import CURRENT_BACKPRESSURE, Backpressure
from .completion import Completion, Piece, Usage
from .scores import Answer
from .telemetry import CURRENT_COUNTS

__all__ = ["Reply", "Result", "sample_seed"]

Result = Completion | Answer
"""The result of one request: an output, or an `Answer` if the request is scored or embedded."""

_MASK = 2**64 - 1


def sample_seed(seed: int, index: int) -> int:
    """Return the 64-bit seed of sample `index` of a request with this seed."""
    if index == 0:
        return seed
    z = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Reply:
    """The results of one call: pieces (if it streams), then one result, or an error.

    Written and read on one event loop. Writing never waits for the reader; the request's
    `max_tokens` bounds the number of unread pieces. If many pieces are unread, `backpressure` is
    paused until half of them are left. It is None for a reply that a program reads itself. The
    first error ends the reply, whatever the other samples do.

    n: number of requests whose results make up the reply.
    streams: True if the caller reads pieces, and not only the result.
    parse: returns the parsed value of an output's text; None for outputs without one.
    counts: the tokens of the server's request that the call is a part of; None: nobody counts.
    """

    def __init__(self, *, streams: bool = False, n: int = 1) -> None:
        self.streams = streams
        self.parse: Callable[[str], object] | None = None
        self.backpressure = CURRENT_BACKPRESSURE.get()
        self.counts = CURRENT_COUNTS.get()
        self.pieces: deque[Piece] = deque()
        self._results: list[Result | None] = [None] * n
        self._n_left = n
        self._fresh: list[int] = []  # indices of results that were not taken yet
        self._error: PybatcherError | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """True once no more pieces come: the reply has all results, or an error."""
        return not self._n_left or self._error is not None

    @property
    def failed(self) -> bool:
        """True once the reply has ended with an error."""
        return self._error is not None

    @property
    def is_paused(self) -> bool:
        """True while back-pressure pauses the requests of this reply."""
        return self.backpressure is not None and self.backpressure.is_paused

    @property
    def completion(self) -> Completion | None:
        """The whole output, with all its samples; None before the end, and after an error."""
        if self._error is not None or self._n_left:
            return None
        results = [self._with_parse(one) for one in self._results if isinstance(one, Completion)]
        if not results:
            return None
        first, *choices = results
        if not choices:
            return first
        usage = Usage(
            prompt_tokens=first.usage.prompt_tokens,
            cached_tokens=first.usage.cached_tokens,
            completion_tokens=sum(len(one.token_ids) for one in (first, *choices)),
            image_tokens=first.usage.image_tokens,
        )
        return replace(first, usage=usage, other_choices=tuple(choices))

    def _with_parse(self, completion: Completion) -> Completion:
        return completion if self.parse is None else replace(completion, parse=self.parse)

    def expect(self, n: int) -> None:
        """Set the number of requests. Only before the first result."""
        self._results = [None] * n
        self._n_left = n

    def push(self, piece: Piece) -> None:
        """Add output. Only for a reply that streams."""
        self.pieces.append(piece)
        if self.counts is not None:
            self.counts.add_output(len(piece.token_ids))
        own = self.backpressure
        if own is not None and len(self.pieces) >= self._most_unread(own):
            own.pause(self)
        self.wake()

    def take_piece(self) -> Piece:
        """Return the oldest piece that was not taken. The reply must have one."""
        piece = self.pieces.popleft()
        own = self.backpressure
        if own is not None and len(self.pieces) <= self._most_unread(own) // 2:
            own.resume(self)
        return piece

    def take_pieces(self) -> list[Piece]:
        """Return all pieces that were not taken."""
        pieces = list(self.pieces)
        self.pieces.clear()
        self.note_read()
        return pieces

    def note_read(self) -> None:
        """End this reply's pause: its pieces were read, or have no reader any more."""
        if self.backpressure is not None:
            self.backpressure.resume(self)

    def _most_unread(self, backpressure: Backpressure) -> int:
        return backpressure.most_unread * len(self._results)

    def finish(self, result: Result, index: int = 0) -> None:
        """Set the result of the request of sample `index`."""
        if self._results[index] is None:
            self._results[index] = result
            self._n_left -= 1
            self._fresh.append(index)
            if self.counts is not None and isinstance(result, Completion):
                if index == 0:
                    self.counts.add_prompt(result.usage.prompt_tokens)
                if not self.streams:
                    self.counts.add_output(len(result.token_ids), result.timeline.ttft)
            self.wake()

    def fail(self, error: PybatcherError) -> None:
        """End the reply with an error. Ignored after the end."""
        if not self.ended:
            self._error = error
            self.wake()

    async def wait_for_result(self) -> None:
        """Wait until `take_answers` has an answer. Raises the error that ended the reply."""
        while not self._fresh and self._error is None:
            await self.wait()
        if self._error is not None:
            raise self._error

    def take_answers(self) -> list[tuple[int, Answer]]:
        """Return the answers since the previous call, with their indices."""
        fresh, self._fresh = self._fresh, []
        answers = []
        for i in fresh:
            answer, self._results[i] = self._results[i], None
            assert isinstance(answer, Answer)
            answers.append((i, answer))
        return answers

    def wake(self) -> None:
        """Wake the reader, so that it looks for new pieces and results."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def wait(self) -> None:
        """Return at the next change."""
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def result(self) -> Result:
        """Return the result, or raise the error. Only after the end."""
        if self._error is not None:
            raise self._error
        if self._n_left:
            raise RuntimeError("result() was called before the end")
        completion = self.completion
        if completion is not None:
            return completion
        answer = self._results[0]
        assert answer is not None
        return answer
