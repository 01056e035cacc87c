"""`Tile`, `PreparedImage` and `ImageProcessor`: the interface between images and the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .reading import DecodedImage

__all__ = ["ImageProcessor", "PreparedImage", "Tile", "make_tile"]

_DIGEST_VERSION = b"pybatcher.image.1"
_ROWS = 256


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Tile:
    """One input of the vision tower: the patches of an image, or of a part of it.

    Rows are patches. The rows of one output token are consecutive.

    pixels: uint8 (n, channels * k) if `channels_first`, otherwise (n, k * channels); k is the
        number of pixels of a patch.
    levels: float32 (channels, 256): the normalised value of each pixel value.
    channels_first: the order of the columns of `pixels` and `patches`.
    repeats: how often `patches` repeats the pixels of a channel, for towers that take frames of
        a video in pairs.
    coordinates: int32 (n, 2): row and column of each patch.
    table_index, table_weight: int32 and float32 (n, k): the rows of the tower's position table
        that are added to each patch, and their weights; k may be 0.
    windows: int32 (n_windows,): lengths of the attention windows, which are consecutive rows;
        empty: the tower has none.
    order: int32 (n_tokens,): the row of the tower's result that is the embedding of each token;
        None: the rows are in the order of the tokens.
    n_tokens: image tokens of the prompt that stand for this tile.
    grid: (frames, rows, columns) of patches.
    digest: SHA-256 of all that the tower's result depends on besides its weights.
    """

    pixels: NDArray[np.uint8]
    levels: NDArray[np.float32]
    channels_first: bool
    repeats: int
    coordinates: NDArray[np.int32]
    table_index: NDArray[np.int32]
    table_weight: NDArray[np.float32]
    windows: NDArray[np.int32]
    order: NDArray[np.int32] | None
    n_tokens: int
    grid: tuple[int, int, int]
    digest: bytes

    @property
    def patches(self) -> NDArray[np.float32]:
        """The normalised patches: float32 (n, channels * repeats * k), computed at each access.

        The pixels of a tile stay in memory as bytes, because the floats take four times as much,
        or eight times with two frames.
        """
        n, channels = len(self.pixels), len(self.levels)
        size = self.pixels.shape[1] // channels
        shape = (n, channels, self.repeats, size) if self.channels_first else (n, size, channels)
        values = np.empty(shape, np.float32)
        for start in range(0, n, _ROWS):  # an index of NumPy takes eight bytes
            rows = slice(start, start + _ROWS)
            for channel, levels in enumerate(self.levels):
                if self.channels_first:
                    pixels = self.pixels[rows, channel * size : (channel + 1) * size]
                    values[rows, channel] = levels[pixels][:, None]
                else:
                    values[rows, :, channel] = levels[self.pixels[rows, channel::channels]]
        return values.reshape(n, -1)


def make_tile(
    *,
    settings: str,
    pixels: NDArray[np.uint8],
    levels: NDArray[np.float32],
    coordinates: NDArray[np.int32],
    n_tokens: int,
    grid: tuple[int, int, int],
    channels_first: bool = True,
    repeats: int = 1,
    table_index: NDArray[np.int32] | None = None,
    table_weight: NDArray[np.float32] | None = None,
    windows: NDArray[np.int32] | None = None,
    order: NDArray[np.int32] | None = None,
) -> Tile:
    """Return a tile with its digest.

    settings: names the processor and all its settings that the arrays do not show.
    """
    if table_index is None:
        table_index = np.empty((len(pixels), 0), np.int32)
    if table_weight is None:
        table_weight = np.ones(table_index.shape, np.float32)
    if windows is None:
        windows = np.empty(0, np.int32)
    arrays: dict[str, Any] = {
        "pixels": pixels,
        "levels": levels,
        "coordinates": coordinates,
        "table_index": table_index,
        "table_weight": table_weight,
        "windows": windows,
    }
    digest = hashlib.sha256(_DIGEST_VERSION)
    facts = (settings, channels_first, repeats, n_tokens, grid, order is not None)
    digest.update(repr(facts).encode())
    for array in [*arrays.values(), *([] if order is None else [order])]:
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return Tile(
        **arrays,
        channels_first=channels_first,
        repeats=repeats,
        order=order,
        n_tokens=n_tokens,
        grid=grid,
        digest=digest.digest(),
    )


@dataclass(frozen=True, slots=True, eq=False)
class PreparedImage:
    """An image as the model takes it.

    tiles: in the order of their tokens in `text`. The image tokens of `text` belong to the tiles
        in turn, `n_tokens` each. Other tokens may stand between the tokens of one tile.
    text: replaces the placeholder of the image in the rendered chat.
    """

    tiles: tuple[Tile, ...]
    text: str

    @property
    def n_tokens(self) -> int:
        """Image tokens in `text`."""
        return sum(tile.n_tokens for tile in self.tiles)


class ImageProcessor(Protocol):
    """Turns images into the patches and texts of one model."""

    @property
    def placeholder(self) -> str:
        """The text that the chat template writes for an image."""

    @property
    def image_token(self) -> str:
        """The text of the token that an embedding of the tower replaces."""

    def prepare(self, image: DecodedImage, detail: str = "auto") -> PreparedImage:
        """Resize, normalise and cut an image. Blocking: call it on a thread.

        detail: "low" takes fewer tokens where the model can; every other value means the model's
            own settings.

        Raises InvalidRequestError for an image that the model cannot take, as one that is too
        long and narrow.
        """

    def positions(
        self, tokens: Sequence[int], runs: Sequence[tuple[int, Tile]]
    ) -> NDArray[np.int32] | None:
        """Return the rope positions of a prompt, int32 (3, n): time, row and column.

        tokens: the n tokens of the prompt.
        runs: for each tile in the prompt, in order, the index of its first token and the tile.

        None: the positions of this model are the plain indices.
        """
