"""`ImageIds`: numbers the tokens of images, so that equal ids stand for equal images."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakSet

from ..errors import QueueFullError
from ..scheduling import FIRST_IMAGE_ID, LAST_IMAGE_ID, PromptImages

if TYPE_CHECKING:
    from ..images import Tile

__all__ = ["ImageIds"]

_MOST_KNOWN = 2**14  # tiles


class ImageIds:
    """Gives each tile a range of ids. Any thread may use it.

    A tile that is known gets the ids that it had. Others get ids that no tile had before, until
    all are used up, after some two billion tokens of images. Then the numbering begins again, with
    ids that neither a known tile nor a prompt in use has, and `start_over` is called once: before a
    prompt with such ids is computed, KV and rows of earlier images must be dropped.

    most_known: tiles that are remembered, the latest used ones. first, last: the range of ids.
    """

    def __init__(
        self,
        start_over: Callable[[], object],
        *,
        most_known: int = _MOST_KNOWN,
        first: int = FIRST_IMAGE_ID,
        last: int = LAST_IMAGE_ID,
    ) -> None:
        self._start_over = start_over
        self._most_known = most_known
        self._first, self._last = first, last
        self._next = first
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[int, int]] = OrderedDict()  # first id, number of ids
        self._in_use: WeakSet[PromptImages] = WeakSet()
        self._kept: list[tuple[int, int]] = []  # ids that are skipped: begin and end, sorted

    def first_ids(self, tiles: Sequence[Tile]) -> list[int]:
        """Return the first id of each tile. Raises QueueFullError if prompts in use have all."""
        with self._lock:
            return [self._first_id(tile.digest, tile.n_tokens) for tile in tiles]

    def hold(self, images: PromptImages) -> PromptImages:
        """Return the images of a prompt, whose ids no other tile gets as long as they exist."""
        with self._lock:
            self._in_use.add(images)
        return images

    def _first_id(self, digest: bytes, n_tokens: int) -> int:
        known = self._known.get(digest)
        if known is not None:
            self._known.move_to_end(digest)
            return known[0]
        first = self._free(n_tokens)
        if first is None:
            self._begin_again()
            first = self._free(n_tokens)
            if first is None:
                raise QueueFullError(
                    "the ids of images are used up by requests; try again later", retry_after=1.0
                )
        self._next = first + n_tokens
        self._known[digest] = first, n_tokens
        if len(self._known) > self._most_known:
            self._known.popitem(last=False)
        return first

    def _free(self, n_tokens: int) -> int | None:
        """Return the next id after which so many are free; None if there are none to the end."""
        first = self._next
        while self._kept and first + n_tokens > self._kept[0][0]:
            first = max(first, self._kept.pop(0)[1])
        return first if first + n_tokens - 1 <= self._last else None

    def _begin_again(self) -> None:
        ranges = [(first, first + n) for first, n in self._known.values()]
        ranges += [
            (placed.first_id, placed.first_id + placed.n_tokens)
            for images in self._in_use
            for placed in images.tiles
        ]
        self._kept = sorted(ranges)
        self._next = self._first
        self._start_over()
