"""`Tower`: schedules the encoding of images, and keeps the rows that it made.

The vision tower of the engine encodes the tiles of images to rows, which stand for their tokens in
a prompt. Its work is a part of steps: it takes rows out of their budget, as prompts do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..errors import EngineError, InvalidRequestError
from .budget import StepBudget
from .images import PlacedTile, PromptImages
from .kv_allocator import KvAllocator
from .plan import EncodeWork
from .request import LiveRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Tower"]

_KEPT_BYTES = 2**28  # of rows that no running request needs


class Tower:
    """The tiles that wait for the tower or are in it, and the rows of tiles that were encoded.

    Rows are kept by the id of their tile, so that equal tiles of other requests and of later
    turns are not encoded again. Rows that running requests still need stay; others are dropped,
    least recently used first, once they are more than `kept_bytes`.
    """

    def __init__(self, kv: KvAllocator, kept_bytes: int = _KEPT_BYTES) -> None:
        self._kv = kv
        self._kept_bytes = kept_bytes
        self._rows: OrderedDict[int, NDArray[np.float32] | str] = OrderedDict()
        self._wanted: dict[int, tuple[PlacedTile, LiveRequest]] = {}
        self._in_flight: list[tuple[PlacedTile, LiveRequest]] = []
        self._is_begun = False  # the engine has the tiles in flight
        self._row_layers_left = 0

    def check(self, images: PromptImages, where: str) -> None:
        """Raise InvalidRequestError for images that this engine cannot encode.

        where: the name of the prompt in errors.
        """
        most = self._kv.tower_rows
        if most == 0:
            raise InvalidRequestError(
                "this engine takes no images: it was loaded without a vision tower", field=where
            )
        for placed in images.tiles:
            n_patches = len(placed.tile.pixels)
            if n_patches > most:
                raise InvalidRequestError(
                    f"an image has {n_patches} patches; the vision tower takes {most} at a time: "
                    "make it smaller",
                    field=where,
                )

    def begin_step(self) -> None:
        """Forget which tiles were wanted in the last step."""
        self._wanted.clear()

    def ready(self, live: LiveRequest, left: int) -> int:
        """Return how many of the next `left` tokens of a request have their rows.

        Tiles without rows are wanted from now on. Raises EngineError if a tile cannot be encoded.
        """
        images = live.request.images
        if images is None:
            return left
        computed, count = live.num_computed_tokens, left
        for placed in images.tiles:
            if placed.start + placed.n_tokens <= computed:
                continue
            rows = self._rows.get(placed.tile_id)
            if isinstance(rows, str):
                raise EngineError(f"an image could not be encoded: {rows}")
            if rows is None:
                count = min(count, max(placed.start - computed, 0))
                self._wanted.setdefault(placed.tile_id, (placed, live))
        return count

    def rows_of(self, live: LiveRequest, count: int) -> tuple[tuple[int, NDArray[np.float32]], ...]:
        """Return the rows of images among the next `count` tokens, with their offsets in them."""
        images = live.request.images
        if images is None:
            return ()
        found = []
        begin, end = live.num_computed_tokens, live.num_computed_tokens + count
        for placed in images.tiles:
            low, high = max(begin, placed.start), min(end, placed.start + placed.n_tokens)
            if low < high:
                rows = self._rows[placed.tile_id]
                assert not isinstance(rows, str)
                self._rows.move_to_end(placed.tile_id)
                first = placed.offset - placed.start
                found.append((low - begin, rows[low + first : high + first]))
        return tuple(found)

    def plan(self, budget: StepBudget) -> EncodeWork | None:
        """Return the tower's work in this step, and take it out of the budget; None: none.

        The tiles of all wanting requests are encoded together, as far as they fit into the tower.
        Some work is done in every step, so that no load of text stops images.
        """
        if self._in_flight and all(live.ended for _, live in self._in_flight):
            self._in_flight.clear()
        if not self._in_flight:
            if not self._wanted:  # the case of most steps
                return None
            self._in_flight = self._choose()
            if not self._in_flight:
                return None
            self._is_begun = False
            n_patches = sum(len(placed.tile.pixels) for placed, _ in self._in_flight)
            self._row_layers_left = n_patches * self._kv.tower_layers
        cost = self._kv.tower_row_cost
        rows = budget.offer(0, max(round(self._row_layers_left * cost), 1))
        budget.take(0, rows)
        row_layers = max(int(rows / cost), 1)
        self._row_layers_left = max(self._row_layers_left - row_layers, 1)
        begin = () if self._is_begun else tuple(placed.tile for placed, _ in self._in_flight)
        return EncodeWork(begin, row_layers)

    def step_begins(self) -> None:
        """Note that the engine gets the work of the last `plan`."""
        self._is_begun = True

    @property
    def is_busy(self) -> bool:
        """True if tiles are in the tower, or wanted."""
        return bool(self._in_flight or self._wanted)

    @property
    def owners(self) -> list[LiveRequest]:
        """The requests whose tiles are in the tower."""
        return list(dict.fromkeys(live for _, live in self._in_flight if not live.ended))

    def take(
        self, encoded: Sequence[NDArray[np.float32] | str], running: Iterable[LiveRequest]
    ) -> None:
        """Keep the rows of the tiles that were in the tower, or why a tile has none."""
        for (placed, _), rows in zip(self._in_flight, encoded, strict=True):
            self._rows[placed.tile_id] = rows
        self._in_flight.clear()
        self._drop_unneeded(running)

    def lose(self) -> None:
        """Forget the tiles in the tower: the engine has forgotten them."""
        self._in_flight.clear()

    def forget(self) -> None:
        """Forget all rows: ids of images will stand for others."""
        self._rows.clear()

    def _choose(self) -> list[tuple[PlacedTile, LiveRequest]]:
        """Return the wanted tiles that fit into the tower, those of the oldest requests first."""
        chosen = []
        room = self._kv.tower_rows
        for placed, live in self._wanted.values():
            room -= len(placed.tile.pixels)
            if room < 0:
                break
            if not live.ended:
                chosen.append((placed, live))
        return chosen

    def _drop_unneeded(self, running: Iterable[LiveRequest]) -> None:
        def size(rows: NDArray[np.float32] | str) -> int:
            return len(rows) if isinstance(rows, str) else rows.nbytes

        needed = {
            placed.tile_id
            for live in running
            if live.request.images is not None
            for placed in live.request.images.tiles
            if placed.start + placed.n_tokens > live.num_computed_tokens
        }
        spare = [tile_id for tile_id in self._rows if tile_id not in needed]
        excess = sum(size(self._rows[tile_id]) for tile_id in spare) - self._kept_bytes
        for tile_id in spare:
            if excess <= 0:
                break
            excess -= size(self._rows.pop(tile_id))
