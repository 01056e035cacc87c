"""`ImageRoom`: bounds the memory that images of prompts take."""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from ..scheduling import PromptImages
from .fair_slots import FairSlots

__all__ = ["ImageRoom"]

_MOST_BYTES = 2**28
_AT_A_TIME = 4  # chats whose images are read
_MOST_EACH = 2  # ... of one tenant


class ImageRoom:
    """Counts the bytes of the images of all prompts, and lets chats wait for room.

    Images are held from the reading of a chat to the end of its request, so that those of waiting
    requests could take any memory. While they are more than `most_bytes`, no further ones are read.
    For one event loop.

    n_bytes: the bytes of the images that are held; equal tiles count once.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._slots = FairSlots(_AT_A_TIME, _MOST_EACH)
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._holders: Counter[bytes] = Counter()  # prompts of each tile, by its digest
        self.n_bytes = 0

    @asynccontextmanager
    async def entered(self, tenant: str) -> AsyncIterator[None]:
        """Wait for the turn of a chat and for room; inside, its images may be read."""
        await self._slots.acquire(tenant)
        try:
            while self.n_bytes > self._most_bytes:
                self._has_room.clear()
                await self._has_room.wait()
            yield
        finally:
            self._slots.release(tenant)

    def hold(self, images: PromptImages) -> None:
        """Count the images of a prompt for as long as they exist."""
        tiles = {placed.tile.digest: _n_bytes(placed.tile) for placed in images.tiles}
        self._add(tiles, 1)
        weakref.finalize(images, self._let_go, asyncio.get_running_loop(), tiles).atexit = False

    def _let_go(self, loop: asyncio.AbstractEventLoop, tiles: dict[bytes, int]) -> None:
        """Count images no longer. On any thread, as the last reference may end there."""
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._add, tiles, -1)

    def _add(self, tiles: dict[bytes, int], n_holders: int) -> None:
        for digest, n_bytes in tiles.items():
            had = self._holders[digest]
            self._holders[digest] += n_holders
            if not had:
                self.n_bytes += n_bytes
            elif not self._holders[digest]:
                self.n_bytes -= n_bytes
                del self._holders[digest]
        if self.n_bytes <= self._most_bytes:
            self._has_room.set()


def _n_bytes(tile: Any) -> int:
    arrays = (tile.pixels, tile.coordinates, tile.table_index, tile.table_weight)
    return sum(array.nbytes for array in arrays)
