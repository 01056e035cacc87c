"""`Samples`: several outputs of one prompt, for one caller. Each is a request of its own.

Sample 0 draws as a request with n = 1 does. Sample i draws with the i-th number that
splitmix64 (Steele, Lea and Flood 2014) makes of the request's seed: so the samples of a seed
are the same whatever n is, and whatever else is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..errors import PybatcherError
from .completion import Completion, Piece, Usage
from .stream import Reply

__all__ = ["Samples", "sample_seed"]

_MASK = 2**64 - 1


def sample_seed(seed: int, index: int) -> int:
    """The seed that sample `index` of a request with this seed draws with, 64 bit."""
    if index == 0:
        return seed
    z = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Samples:
    """Makes one reply of several: pieces as they come, with their index; the end when all ended.

    If one fails all do, with its error: `cancel_all` is called to take the others back.
    """

    def __init__(self, reply: Reply, n: int, cancel_all: Callable[[], None]) -> None:
        self._reply = reply
        self._cancel_all = cancel_all
        self._n_left = n
        self._failed = False
        self.replies = [SampleReply(self, i, streams=reply.streams) for i in range(n)]

    def push(self, index: int, piece: Piece) -> None:
        """More of one of them."""
        if not self._failed:
            self._reply.push(replace(piece, index=index))

    def note(self) -> None:
        """One more has all of its output."""
        self._n_left -= 1
        if self._n_left or self._failed:
            return
        first, *others = [reply.result() for reply in self.replies]
        usage = Usage(
            prompt_tokens=first.usage.prompt_tokens,
            cached_tokens=first.usage.cached_tokens,
            completion_tokens=sum(len(one.token_ids) for one in (first, *others)),
        )
        self._reply.finish(replace(first, usage=usage, other_choices=tuple(others)))

    def fail(self, error: PybatcherError) -> None:
        """One of them has failed."""
        if not self._failed:
            self._failed = True
            self._reply.fail(error)
            self._cancel_all()


class SampleReply(Reply):
    """Where one sample's output is left."""

    def __init__(self, samples: Samples, index: int, *, streams: bool) -> None:
        super().__init__(streams=streams)
        self._samples = samples
        self._index = index

    def push(self, piece: Piece) -> None:
        """More output."""
        self._samples.push(self._index, piece)

    def finish(self, completion: Completion) -> None:
        """All of the output."""
        super().finish(completion)
        self._samples.note()

    def fail(self, error: PybatcherError) -> None:
        """There will be no more output, and why."""
        self._samples.fail(error)
