"""`steps_of_several`: the outputs of several prompts in order of arrival, from a bounded queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ...calls.any_batcher import AnyBatcher
from ...calls.completion import Completion, Piece
from ...calls.composed.bounded import map_bounded, retry_beside_others
from ..base.event_stream import steps_of

__all__ = ["steps_of_several"]

_MOST_AT_ONCE = 256
"""The most open streams of one request."""

_MOST_UNREAD = 16
"""The most unread steps of all streams together."""


async def steps_of_several(
    batcher: AnyBatcher,
    prompts: Sequence[Any],
    options: Mapping[str, Any],
    made: dict[int, Completion],
) -> AsyncGenerator[tuple[int, list[Piece]]]:
    """Yield the pieces of each step with the number of the prompt, in order of arrival.

    A prompt that finds the queue full waits for others of the list, as in a `generate` of a list.
    made: receives the completion of each prompt at its end. Closing the generator cancels all
    outputs. Raises the first error, which cancels the others.
    """
    found: asyncio.Queue[tuple[int, list[Piece]] | None] = asyncio.Queue()
    room = asyncio.Semaphore(_MOST_UNREAD)

    async def pass_on(i: int) -> None:
        async with batcher.stream(prompts[i], **options) as stream:
            async with aclosing(steps_of(stream)) as steps:
                async for pieces in steps:
                    await room.acquire()
                    found.put_nowait((i, pieces))
            if stream.completion is not None:
                made[i] = stream.completion

    bounded = map_bounded(retry_beside_others(pass_on), range(len(prompts)), _MOST_AT_ONCE)
    working = asyncio.ensure_future(bounded)
    working.add_done_callback(lambda _: found.put_nowait(None))
    try:
        while (one := await found.get()) is not None:
            room.release()
            yield one
        working.result()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
