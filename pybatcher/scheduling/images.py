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
    """A tile of an image at its place in a prompt.

    start: index of its first token in the prompt. n_tokens: the number of its tokens, which have
    the ids from `first_id` to `first_id + n_tokens - 1`. Equal ids mean equal contents.
    tile: the `Tile` that the vision tower computes, with `n_tokens` rows.
    """

    start: int
    n_tokens: int
    first_id: int
    tile: Any


@dataclass(frozen=True, slots=True, eq=False)
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
