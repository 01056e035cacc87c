"""Streams that are read to their end, and when each of their tokens was in the caller's hands."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pybatcher import AnyBatcher, Completion, Piece

__all__ = ["Heard", "listen"]


@dataclass(frozen=True, slots=True)
class Heard:
    """A stream that has ended. arrivals: one a token, seconds of time.monotonic."""

    completion: Completion
    arrivals: tuple[float, ...]

    @property
    def delays(self) -> list[float]:
        """From the moment that the batcher handed a token over to its arrival here, a token each.

        The batcher may be another process: on one machine all have one clock.
        """
        stamps = self.completion.timeline.token_times
        return [arrival - stamp for arrival, stamp in zip(self.arrivals, stamps, strict=True)]

    @property
    def gaps(self) -> list[float]:
        """Between the arrivals of neighbouring tokens (ITL)."""
        return [later - sooner for sooner, later in pairwise(self.arrivals)]


async def listen(
    batcher: AnyBatcher,
    prompt: Any,
    on_piece: Callable[[Piece], None] = lambda piece: None,
    **params: Any,
) -> Heard:
    """Ask for a stream and read it. RuntimeError if its pieces are not its completion."""
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
    return Heard(completion, tuple(arrivals))
