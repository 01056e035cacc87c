"""LFM2-VL: sizes within a range of tokens; large images as tiles and a thumbnail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..patches import cut, grid_coordinates, resized, scaled
from ..prepared import PreparedImage, Tile, make_tile
from ..reading import DecodedImage
from ..settings import BILINEAR, HALF, ProcessorFiles, read_levels, read_resample

__all__ = ["Lfm2VlProcessor"]

_MAX_TILES = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lfm2VlProcessor:
    """The processor of LFM2-VL.

    min_tokens, max_tokens: bounds on the tokens of an image, or of the thumbnail of a large one.
    tolerance: an image with more than `tolerance` times the pixels of `max_tokens` is large.
    tile: the side of a tile of a large image.
    min_tiles, max_tiles: bounds on the tiles of a large image; (1, 1): there are no large images.
    thumbnail: True if the whole image follows the tiles.
    merge: merge x merge patches become one token.
    positions_side: the side of the square table of learned positions.
    marks: True if texts of special tokens mark the tiles.
    """

    levels: NDArray[np.float32]
    resample: int
    min_tokens: int
    max_tokens: int
    tolerance: float
    tile: int
    min_tiles: int
    max_tiles: int
    thumbnail: bool
    patch: int
    merge: int
    positions_side: int
    marks: bool
    image_token: str
    start_token: str
    end_token: str
    thumbnail_token: str

    @property
    def placeholder(self) -> str:
        """The text that the chat template writes for an image."""
        return self.image_token

    @classmethod
    def read(cls, files: ProcessorFiles) -> Lfm2VlProcessor:
        """Read the settings of a checkpoint. Raises ModelFormatError for odd ones."""
        preprocessor = files.preprocessor
        patch = files.vision.integer("patch_size", 1, 256, 16)
        merge = files.config.integer("downsample_factor", 1, 16, 2)
        files.equal(preprocessor, "encoder_patch_size", patch)
        files.equal(preprocessor, "downsample_factor", merge)
        n_positions = files.vision.integer("num_patches", 1, 2**24, 256)
        positions_side = math.isqrt(n_positions)
        if positions_side**2 != n_positions:
            raise files.vision.error("num_patches", "a square number")
        tile = preprocessor.integer("tile_size", 1, 2**14, 512)
        if tile % (patch * merge):
            raise preprocessor.error("tile_size", f"a multiple of {patch * merge}")
        least, most = 1, 1
        if preprocessor.boolean("do_image_splitting", True):
            least = preprocessor.integer("min_tiles", 1, _MAX_TILES, 2)
            most = preprocessor.integer("max_tiles", least, _MAX_TILES, 10)
        min_tokens = preprocessor.integer("min_image_tokens", 1, 2**16, 64)
        return cls(
            levels=read_levels(preprocessor, HALF, fused=True),
            resample=read_resample(preprocessor, BILINEAR),
            min_tokens=min_tokens,
            max_tokens=preprocessor.integer("max_image_tokens", min_tokens, 2**16, 256),
            tolerance=preprocessor.number("max_pixels_tolerance", 0.0, 1e6, 2.0),
            tile=tile,
            min_tiles=least,
            max_tiles=most,
            thumbnail=preprocessor.boolean("use_thumbnail", True),
            patch=patch,
            merge=merge,
            positions_side=positions_side,
            marks=files.processor.boolean("use_image_special_tokens", True),
            image_token=files.special_token("image_token", "<image>"),
            start_token=files.special_token("image_start_token", "<|image_start|>"),
            end_token=files.special_token("image_end_token", "<|image_end|>"),
            thumbnail_token=files.special_token("image_thumbnail_token", "<|img_thumbnail|>"),
        )

    def prepare(self, image: DecodedImage, detail: str = "auto") -> PreparedImage:
        """Resize, normalise and cut an image; see `ImageProcessor.prepare`."""
        height, width = self._size(image.height, image.width)
        rows = columns = 1
        if self.max_tiles > 1 and detail != "low" and self._is_large(image.height, image.width):
            rows, columns = self._grid(image.height, image.width)
            large = self._resized(image, rows * self.tile, columns * self.tile)
        tiles, marks = [], []
        if rows * columns > 1:
            side = self.tile
            for row in range(rows):
                for column in range(columns):
                    pixels = large[side * row :, side * column :][:side, :side]
                    tiles.append(self._tile(pixels))
                    marks.append(f"<|img_row_{row + 1}_col_{column + 1}|>")
        if rows * columns == 1 or self.thumbnail:
            tiles.append(self._tile(self._resized(image, height, width)))
            marks.append(self.thumbnail_token if marks else "")
        texts = [self.image_token * tile.n_tokens for tile in tiles]
        if self.marks:
            texts = [mark + text for mark, text in zip(marks, texts, strict=True)]
            texts = [self.start_token, *texts, self.end_token]
        return PreparedImage(tuple(tiles), "".join(texts))

    def _resized(self, image: DecodedImage, height: int, width: int) -> NDArray[np.uint8]:
        """Return the pixels of an image in another size, columns first.

        transformers resizes these images by torchvision, which resizes columns first and rounds.
        Pillow chooses the order by the sizes, and the other order rounds a fifth of the pixels
        differently.
        """
        wide = scaled(image, image.height, width, self.resample)
        return resized(wide, height, width, self.resample)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """Return a size of whole tokens, from `min_tokens` to `max_tokens` of them."""
        unit = self.patch * self.merge
        rows = max(unit, round(height / unit) * unit)
        columns = max(unit, round(width / unit) * unit)
        least, most = self.min_tokens * unit**2, self.max_tokens * unit**2
        if rows * columns > most:
            ratio = math.sqrt(height * width / most)
            rows = max(unit, math.floor(height / ratio / unit) * unit)
            columns = max(unit, math.floor(width / ratio / unit) * unit)
        elif rows * columns < least:
            ratio = math.sqrt(least / (height * width))
            rows = math.ceil(height * ratio / unit) * unit
            columns = math.ceil(width * ratio / unit) * unit
        return rows, columns

    def _is_large(self, height: int, width: int) -> bool:
        unit = self.patch * self.merge
        rows = max(self.patch, round(height / unit) * unit)
        columns = max(self.patch, round(width / unit) * unit)
        return rows * columns > self.max_tokens * unit**2 * self.tolerance

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Return the rows and columns of tiles with the nearest ratio of sides.

        If several have it, the last one that less than doubles the image's pixels is taken, or
        the first one.
        """
        ratio = width / height
        grids = [
            (columns, rows)
            for columns in range(1, self.max_tiles + 1)
            for rows in range(1, self.max_tiles + 1)
            if self.min_tiles <= columns * rows <= self.max_tiles
        ]
        nearest, best = math.inf, (1, 1)
        for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
            distance = abs(ratio - columns / rows)
            n_pixels = self.tile**2 * columns * rows
            if distance < nearest or (distance == nearest and height * width > 0.5 * n_pixels):
                nearest, best = distance, (columns, rows)
        return best[1], best[0]

    def _tile(self, pixels: NDArray[np.uint8]) -> Tile:
        rows, columns = pixels.shape[0] // self.patch, pixels.shape[1] // self.patch
        coordinates = grid_coordinates(rows, columns, self.merge)
        index, weight = _interpolation(coordinates, rows, columns, self.positions_side)
        return make_tile(
            settings=f"lfm2_vl {self.merge}",
            pixels=cut(pixels, self.patch, self.merge, channels_first=False),
            levels=self.levels,
            channels_first=False,
            coordinates=coordinates,
            n_tokens=rows * columns // self.merge**2,
            grid=(1, rows, columns),
            table_index=index,
            table_weight=weight,
        )

    def positions(self, tokens: Sequence[int], runs: Sequence[tuple[int, Tile]]) -> None:
        """Return None: the positions of this model are the plain indices."""


def _interpolation(
    coordinates: NDArray[np.int32], rows: int, columns: int, side: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the taps of an antialiased bilinear resizing of a square table to the grid."""
    row_taps, row_weights = _taps(rows, side)
    column_taps, column_weights = _taps(columns, side)
    at_row, at_column = coordinates.T
    index = row_taps[at_row][:, :, None] * np.int32(side) + column_taps[at_column][:, None, :]
    weight = row_weights[at_row][:, :, None] * column_weights[at_column][:, None, :]
    return index.reshape(len(coordinates), -1), weight.reshape(len(coordinates), -1)


def _taps(size: int, side: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the taps along one axis: int32 and float32 (size, k)."""
    scale = np.float32(side) / np.float32(size)
    centers = (np.arange(size, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    source = np.arange(side, dtype=np.float32)
    weights = np.maximum(1 - np.abs(source - centers[:, None]) / max(scale, np.float32(1)), 0)
    weights /= weights.sum(axis=1, keepdims=True)
    count = int((weights > 0).sum(axis=1).max())
    first = np.minimum((weights > 0).argmax(axis=1), side - count)
    taps = (first[:, None] + np.arange(count)).astype(np.int32)
    return taps, np.take_along_axis(weights, taps, axis=1)
