"""Idefics 3 and SmolVLM: square tiles of an image and the whole of it, named by row and column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..patches import cut, grid_coordinates, resized, scaled
from ..prepared import PreparedImage, Tile, make_tile
from ..reading import DecodedImage
from ..settings import HALF, LANCZOS, ProcessorFiles, read_levels, read_resample

__all__ = ["Idefics3Processor"]

_MAX_SIDE = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Idefics3Processor:
    """The processor of Idefics 3 and SmolVLM.

    longest: the longer side of an image before it is split.
    tile: the side of a tile.
    splits: True if an image that is larger than a tile is split.
    merge: merge x merge patches become one token.
    positions_side: the side of the square table of learned positions.
    image_token, global_token, around_token: texts of the token of an embedding, of the token
        before the tile with the whole image, and of the token before each tile and at the end.
    """

    levels: NDArray[np.float32]
    resample: int
    longest: int
    tile: int
    splits: bool
    patch: int
    merge: int
    positions_side: int
    image_token: str
    global_token: str
    around_token: str

    @property
    def placeholder(self) -> str:
        """The text that the chat template writes for an image."""
        return self.image_token

    @classmethod
    def read(cls, files: ProcessorFiles) -> Idefics3Processor:
        """Read the settings of a checkpoint. Raises ModelFormatError for odd ones."""
        preprocessor = files.preprocessor
        patch = files.vision.integer("patch_size", 1, 256, 32)
        merge = files.config.integer("scale_factor", 1, 16, 2)
        image_size = files.vision.integer("image_size", patch, 2**14, 224)
        tiles = preprocessor.child("max_image_size")
        tile = tiles.integer("longest_edge", 1, _MAX_SIDE, image_size)
        if tile % (patch * merge):
            raise tiles.error("longest_edge", f"a multiple of {patch * merge}, the side of a token")
        n_tokens = (tile // patch // merge) ** 2
        files.equal(files.processor, "image_seq_len", n_tokens)
        return cls(
            levels=read_levels(preprocessor, HALF),
            resample=read_resample(preprocessor, LANCZOS),
            longest=files.edges().integer("longest_edge", 1, 2**16, 4 * tile),
            tile=tile,
            splits=preprocessor.boolean("do_image_splitting", True),
            patch=patch,
            merge=merge,
            positions_side=image_size // patch,
            image_token=files.special_token("image_token", "<image>"),
            global_token=files.special_token("global_image_token", "<global-img>"),
            around_token=files.special_token("fake_image_token", "<fake_token_around_image>"),
        )

    def prepare(self, image: DecodedImage, detail: str = "auto") -> PreparedImage:
        """Resize, normalise and cut an image; see `ImageProcessor.prepare`.

        Each resizing rounds to whole pixel values, so none of the steps can be left out.
        """
        size = self._longest_size(image.height, image.width)
        image = scaled(image, *size, self.resample)
        rows = columns = 0
        if self.splits and detail != "low":
            size = self._whole_tiles(image.height, image.width)
            image = scaled(image, *size, self.resample)
            if max(image.height, image.width) > self.tile:
                rows, columns = image.height // self.tile, image.width // self.tile
        side, pixels = self.tile, image.pixels
        parts = [
            pixels[side * row : side * (row + 1), side * column : side * (column + 1)]
            for row in range(rows)
            for column in range(columns)
        ]
        parts.append(resized(image, side, side, self.resample))
        tiles = tuple(self._tile(part) for part in parts)
        return PreparedImage(tiles, self._text(rows, columns, tiles[0].n_tokens))

    def _longest_size(self, height: int, width: int) -> tuple[int, int]:
        """Return a size with the longer side `longest`, and the shorter one even."""
        ratio = width / height
        if width >= height:
            width = self.longest
            height = int(width / ratio)
            height += height % 2
        else:
            height = self.longest
            width = int(height * ratio)
            width += width % 2
        height, width = max(height, 1), max(width, 1)
        ratio = width / height
        if width >= height and width > _MAX_SIDE:
            height, width = int(_MAX_SIDE / ratio), _MAX_SIDE
        elif height > width and height > _MAX_SIDE:
            height, width = _MAX_SIDE, int(_MAX_SIDE * ratio)
        return max(height, 1), max(width, 1)

    def _whole_tiles(self, height: int, width: int) -> tuple[int, int]:
        """Return a size that whole tiles fill: the longer side rounds up, the other follows it."""
        ratio = width / height
        if width >= height:
            width = math.ceil(width / self.tile) * self.tile
            height = int(width / ratio)
        else:
            height = math.ceil(height / self.tile) * self.tile
            width = int(height * ratio)
        return (
            math.ceil(height / self.tile) * self.tile,
            math.ceil(width / self.tile) * self.tile,
        )

    def _tile(self, pixels: NDArray[np.uint8]) -> Tile:
        side = self.tile // self.patch
        coordinates = grid_coordinates(side, side, self.merge)
        buckets = _buckets(side, self.positions_side)[coordinates]
        return make_tile(
            settings=f"idefics3 {self.merge}",
            pixels=cut(pixels, self.patch, self.merge),
            levels=self.levels,
            coordinates=coordinates,
            n_tokens=(side // self.merge) ** 2,
            grid=(1, side, side),
            table_index=buckets[:, :1] * np.int32(self.positions_side) + buckets[:, 1:],
        )

    def _text(self, rows: int, columns: int, n_tokens: int) -> str:
        tokens = self.image_token * n_tokens
        parts = []
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                parts.append(f"{self.around_token}<row_{row}_col_{column}>{tokens}")
            parts.append("\n")
        if rows:
            parts.append("\n")
        parts.append(f"{self.around_token}{self.global_token}{tokens}{self.around_token}")
        return "".join(parts)

    def positions(self, tokens: Sequence[int], runs: Sequence[tuple[int, Tile]]) -> None:
        """Return None: the positions of this model are the plain indices."""


def _buckets(side: int, positions_side: int) -> NDArray[np.int32]:
    """Return for each row of patches the row of the position table that is nearest below."""
    step = 1 / positions_side
    n_boundaries = math.ceil((1 - step) / step)
    boundaries = (step + np.arange(n_boundaries) * step).astype(np.float32)
    at = np.arange(side, dtype=np.float32) * (np.float32(1) / np.float32(side))
    at = np.minimum(at, np.float32(1 - 1e-6))
    buckets: NDArray[np.int32] = np.searchsorted(boundaries, at, side="right").astype(np.int32)
    return buckets
