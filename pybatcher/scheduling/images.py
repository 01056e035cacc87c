"""`PromptImages`: the images of a prompt, where their tokens are, and their rope positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["FIRST_IMAGE_ID", "LAST_IMAGE_ID", "PlacedTile", "PromptImages"]

FIRST_IMAGE_ID = 1 << 24
"""The first id of an image's token, after the ids of the largest vocabulary."""
LAST_IMAGE_ID = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class PlacedTile:
    """A run of consecutive tokens in a prompt that belong to one tile of an image.

    Most tiles have one run. A model that writes other tokens between the rows of an image has a run
    for each row.

    start: index of its first token in the prompt. n_tokens: the number of its tokens, which have
    the ids from `first_id` to `first_id + n_tokens - 1`. Equal ids mean equal contents.
    tile: the `Tile` that the vision tower computes. offset: number of the tile's tokens in the runs
    before this one.
    """

    start: int
    n_tokens: int
    first_id: int
    tile: Any
    offset: int = 0

    @property
    def tile_id(self) -> int:
        """The id of the tile's first token, the same for all runs of the tile."""
        return self.first_id - self.offset


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PromptImages:
    """The images of one prompt. Immutable.

    tiles: sorted by `start`; their runs of tokens do not overlap.
    positions: rope positions of the prompt's tokens, int32 (n_axes, n_prompt); None if they are the
        indices of the tokens.
    token_id: the token of the vocabulary that stands for each token of an image.
    """

    tiles: tuple[PlacedTile, ...]
    positions: NDArray[np.int32] | None
    token_id: int

    @property
    def n_tokens(self) -> int:
        """The number of tokens of all tiles."""
        return sum(placed.n_tokens for placed in self.tiles)

    def plain(self, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens of the prompt with `token_id` in the place of each image id."""
        made = list(prompt)
        for placed in self.tiles:
            stop = placed.start + placed.n_tokens
            made[placed.start : stop] = [self.token_id] * placed.n_tokens
        return tuple(made)
