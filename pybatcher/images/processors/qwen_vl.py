"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen 3.5: sizes by pixel count, three positions per token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..patches import cut, grid_coordinates, resized
from ..prepared import PreparedImage, Tile, make_tile
from ..reading import DecodedImage
from ..settings import BICUBIC, CLIP, MAX_SETTING, ProcessorFiles, read_levels, read_resample

__all__ = ["QwenVlProcessor"]

_MAX_ASPECT_RATIO = 200
_LOW_DETAIL_PIXELS = 512 * 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QwenVlProcessor:
    """The processor of the Qwen-VL models.

    min_pixels, max_pixels: bounds on the pixels of a resized image.
    merge: merge x merge patches become one token.
    frames: how often a patch repeats the image, for a tower that takes frames in pairs.
    positions_side: the learned positions are a square table of this side, interpolated between
        its corners; 0: there are none.
    window: the side of an attention window in tokens; 0: there are no windows.
    """

    levels: NDArray[np.float32]
    resample: int
    min_pixels: int
    max_pixels: int
    patch: int
    merge: int
    frames: int
    positions_side: int
    window: int
    image_token: str

    @property
    def placeholder(self) -> str:
        """The text that the chat template writes for an image."""
        return self.image_token

    @classmethod
    def read(cls, files: ProcessorFiles) -> QwenVlProcessor:
        """Read the settings of a checkpoint. Raises ModelFormatError for odd ones."""
        vision, preprocessor = files.vision, files.preprocessor
        model_type = files.config.text("model_type")
        is_third = model_type.startswith("qwen3")
        patch = vision.integer("patch_size", 1, 256, 16 if is_third else 14)
        merge = vision.integer("spatial_merge_size", 1, 16, 2)
        frames = vision.integer("temporal_patch_size", 1, 16, 2)
        files.equal(preprocessor, "patch_size", patch)
        files.equal(preprocessor, "merge_size", merge)
        files.equal(preprocessor, "temporal_patch_size", frames)
        size = files.edges()
        least = size.integer("shortest_edge", 1, MAX_SETTING, 56 * 56)
        most = size.integer("longest_edge", 1, MAX_SETTING, 28 * 28 * 1280)
        least = preprocessor.integer("min_pixels", 1, MAX_SETTING, least)
        most = preprocessor.integer("max_pixels", least, MAX_SETTING, most)
        if most < least:
            raise size.error("longest_edge", f"at least the shortest_edge, {least}")
        positions_side = 0
        if is_third:
            n_positions = vision.integer("num_position_embeddings", 1, 2**24, 2304)
            positions_side = math.isqrt(n_positions)
            if positions_side**2 != n_positions:
                raise vision.error("num_position_embeddings", "a square number")
        window = 0
        if model_type == "qwen2_5_vl":
            window = vision.integer("window_size", patch * merge, 2**16, 112) // merge // patch
        return cls(
            levels=read_levels(preprocessor, CLIP),
            resample=read_resample(preprocessor, BICUBIC),
            min_pixels=least,
            max_pixels=most,
            patch=patch,
            merge=merge,
            frames=frames,
            positions_side=positions_side,
            window=window,
            image_token=files.special_token("image_token", "<|image_pad|>"),
        )

    def prepare(self, image: DecodedImage, detail: str = "auto") -> PreparedImage:
        """Resize, normalise and cut an image; see `ImageProcessor.prepare`."""
        height, width = self._size(image, detail)
        patches = cut(resized(image, height, width, self.resample), self.patch, self.merge)
        rows, columns = height // self.patch, width // self.patch
        group = self.merge**2
        n_tokens = len(patches) // group
        coordinates = grid_coordinates(rows, columns, self.merge)
        order = None
        windows = np.empty(0, np.int32)
        if self.window:
            tokens, windows = _windows(rows // self.merge, columns // self.merge, self.window)
            patches = patches.reshape(n_tokens, -1)[tokens].reshape(patches.shape)
            coordinates = coordinates.reshape(n_tokens, -1)[tokens].reshape(coordinates.shape)
            windows, order = windows * group, np.argsort(tokens).astype(np.int32)
        index, weight = _interpolation(coordinates, rows, columns, self.positions_side)
        tile = make_tile(
            settings=f"qwen_vl {self.merge}",
            pixels=patches,
            levels=self.levels,
            coordinates=coordinates,
            n_tokens=n_tokens,
            grid=(1, rows, columns),
            repeats=self.frames,
            table_index=index,
            table_weight=weight,
            windows=windows,
            order=order,
        )
        return PreparedImage((tile,), self.image_token * n_tokens)

    def _size(self, image: DecodedImage, detail: str) -> tuple[int, int]:
        """Return the size to resize to: multiples of patch * merge within the pixel bounds."""
        height, width = image.height, image.width
        if max(height, width) / min(height, width) > _MAX_ASPECT_RATIO:
            raise image.error(
                f"this model takes images whose longer side is at most {_MAX_ASPECT_RATIO} times "
                "the shorter one: crop it"
            )
        most = self.max_pixels
        if detail == "low":
            most = min(most, max(_LOW_DETAIL_PIXELS, self.min_pixels))
        unit = self.patch * self.merge
        rows, columns = round(height / unit) * unit, round(width / unit) * unit
        if rows * columns > most:
            ratio = math.sqrt(height * width / most)
            rows = max(unit, math.floor(height / ratio / unit) * unit)
            columns = max(unit, math.floor(width / ratio / unit) * unit)
        elif rows * columns < self.min_pixels:
            ratio = math.sqrt(self.min_pixels / (height * width))
            rows = math.ceil(height * ratio / unit) * unit
            columns = math.ceil(width * ratio / unit) * unit
        return rows, columns

    def positions(
        self, tokens: Sequence[int], runs: Sequence[tuple[int, Tile]]
    ) -> NDArray[np.int32]:
        """Return time, row and column of each token; see `ImageProcessor.positions`.

        A text token has three equal positions. The tokens of an image share one time, and their
        rows and columns count from it. The text after an image continues after the larger of its
        two sides.
        """
        n_tokens = len(tokens)
        found = np.empty((3, n_tokens), np.int32)
        end = position = 0
        for start, tile in runs:
            found[:, end:start] = np.arange(position, position + start - end)
            position += start - end
            rows, columns = tile.grid[1] // self.merge, tile.grid[2] // self.merge
            end = start + tile.n_tokens
            found[0, start:end] = position
            found[1:, start:end] = position + np.indices((rows, columns)).reshape(2, -1)
            position += max(rows, columns)
        found[:, end:] = np.arange(position, position + n_tokens - end)
        return found


def _windows(rows: int, columns: int, side: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the tokens of a grid window by window, and the number of tokens in each window."""
    tokens = np.arange(rows * columns).reshape(rows, columns)
    windows = [
        tokens[y : y + side, x : x + side].reshape(-1)
        for y in range(0, rows, side)
        for x in range(0, columns, side)
    ]
    return np.concatenate(windows), np.array([len(window) for window in windows], np.int32)


def _interpolation(
    coordinates: NDArray[np.int32], rows: int, columns: int, side: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return bilinear taps into a square table, whose corners lie on those of the grid.

    Returns the rows of the table and their weights, int32 and float32 (n, 4), or (n, 0) if `side`
    is 0.
    """
    if not side:
        return np.empty((len(coordinates), 0), np.int32), np.empty(
            (len(coordinates), 0), np.float32
        )
    row_taps, row_weights = _taps(coordinates[:, 0], rows, side)
    column_taps, column_weights = _taps(coordinates[:, 1], columns, side)
    index = row_taps[:, :, None] * side + column_taps[:, None, :]
    weight = row_weights[:, :, None] * column_weights[:, None, :]
    return index.reshape(-1, 4), weight.reshape(-1, 4)


def _taps(
    at: NDArray[np.int32], size: int, side: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    source = at.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    floor = np.floor(source)
    offsets = np.arange(2, dtype=np.float32)
    taps = np.minimum(floor[:, None] + offsets, side - 1).astype(np.int32)
    distance = np.abs(source[:, None] - floor[:, None] - offsets)
    return taps, np.maximum(1 - distance, 0)
