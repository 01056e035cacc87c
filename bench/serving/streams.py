"""Read streams to their end, and record when each token arrived."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pybatcher import AnyBatcher, Completion, Piece

__all__ = ["ReceivedStream", "read_stream"]


@dataclass(frozen=True, slots=True)
class ReceivedStream:
    """A stream that has ended. arrivals: one per token, `time.monotonic` seconds."""

    completion: Completion
    arrivals: tuple[float, ...]

    @property
    def delays(self) -> list[float]:
        """Seconds from when the batcher handed each token to its stream to its arrival here.

        The batcher may be another process: all processes of a machine share this clock.
        """
        stamps = self.completion.timeline.token_times
        return [arrival - stamp for arrival, stamp in zip(self.arrivals, stamps, strict=True)]

    @property
    def gaps(self) -> list[float]:
        """Seconds between the arrivals of neighbouring tokens (ITL)."""
        return [later - sooner for sooner, later in pairwise(self.arrivals)]


async def read_stream(
    batcher: AnyBatcher,
    prompt: Any,
    on_piece: Callable[[Piece], None] = lambda piece: None,
    **params: Any,
) -> ReceivedStream:
    """Request a stream and read it to its end.

    Raises RuntimeError if its pieces do not add up to its completion.
    """
    arrivals: list[float] = []
    token_ids: list[int] = []
    texts: list[str] = []
    stream = batcher.stream(prompt, **params)
    async for piece in stream:
        arrivals += [time.monotonic()] * len(piece.token_ids)
        token_ids += piece.token_ids
        texts.append(piece.text)
        on_piece(piece)
    completion = stream.completion
    if (
        completion is None
        or completion.token_ids != tuple(token_ids)
        or completion.text != "".join(texts)
    ):
        raise RuntimeError(f"the pieces of {prompt!r} are not its completion")
    return ReceivedStream(completion, tuple(arrivals))
