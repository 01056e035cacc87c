"""Gemma 4: sizes within a budget of tokens, two tables of learned positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..patches import cut, grid_coordinates, resized
from ..prepared import PreparedImage, Tile, make_tile
from ..reading import DecodedImage
from ..settings import BICUBIC, HALF, ProcessorFiles, read_levels, read_resample

__all__ = ["Gemma4Processor"]

_BUDGETS = (70, 140, 280, 560, 1120)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gemma4Processor:
    """The processor of Gemma 4.

    budget: the most tokens of an image.
    merge: merge x merge patches become one token.
    n_positions: rows of each of the two position tables, which follow one another: first that
        of the columns, then that of the rows.
    start_token, end_token: texts of the tokens around the tokens of an image.
    """

    levels: NDArray[np.float32]
    resample: int
    budget: int
    patch: int
    merge: int
    n_positions: int
    image_token: str
    start_token: str
    end_token: str

    @property
    def placeholder(self) -> str:
        """The text that the chat template writes for an image."""
        return self.image_token

    @classmethod
    def read(cls, files: ProcessorFiles) -> Gemma4Processor:
        """Read the settings of a checkpoint. Raises ModelFormatError for odd ones."""
        preprocessor = files.preprocessor
        patch = files.vision.integer("patch_size", 1, 256, 16)
        merge = files.vision.integer("pooling_kernel_size", 1, 16, 3)
        files.equal(preprocessor, "patch_size", patch)
        files.equal(preprocessor, "pooling_kernel_size", merge)
        budget = preprocessor.integer("max_soft_tokens", 1, 2**20, 280)
        if budget not in _BUDGETS:
            raise preprocessor.error("max_soft_tokens", f"one of {_BUDGETS}")
        levels = read_levels(preprocessor, HALF, normalizes=False)
        return cls(
            # the model itself moves the values from [0, 1] to [-1, 1]
            levels=2 * (levels - np.float32(0.5)),
            resample=read_resample(preprocessor, BICUBIC),
            budget=budget,
            patch=patch,
            merge=merge,
            n_positions=files.vision.integer("position_embedding_size", 1, 2**20, 10_240),
            image_token=files.special_token("image_token", "<|image|>"),
            start_token=files.special_token("boi_token", "<|image>"),
            end_token=files.special_token("eoi_token", "<image|>"),
        )

    def prepare(self, image: DecodedImage, detail: str = "auto") -> PreparedImage:
        """Resize, normalise and cut an image; see `ImageProcessor.prepare`."""
        budget = min(self.budget, _BUDGETS[0]) if detail == "low" else self.budget
        height, width = self._size(image, budget)
        rows, columns = height // self.patch, width // self.patch
        if max(rows, columns) > self.n_positions:
            raise image.error(
                f"this model would cut it into {columns} x {rows} patches and takes "
                f"{self.n_positions} along a side: crop it"
            )
        coordinates = grid_coordinates(rows, columns, self.merge)
        n_tokens = rows * columns // self.merge**2
        tile = make_tile(
            settings=f"gemma4 {self.merge}",
            pixels=cut(
                resized(image, height, width, self.resample),
                self.patch,
                self.merge,
                channels_first=False,
            ),
            levels=self.levels,
            channels_first=False,
            coordinates=coordinates,
            n_tokens=n_tokens,
            grid=(1, rows, columns),
            table_index=coordinates[:, ::-1] + np.array([0, self.n_positions], np.int32),
        )
        text = self.start_token + self.image_token * n_tokens + self.end_token
        return PreparedImage((tile,), text)

    def _size(self, image: DecodedImage, budget: int) -> tuple[int, int]:
        """Return the largest size of whole tokens within the budget, with the ratio kept."""
        height, width = image.height, image.width
        unit = self.patch * self.merge
        n_pixels = budget * unit**2
        scale = math.sqrt(n_pixels / (height * width))
        rows = math.floor(scale * height / unit)
        columns = math.floor(scale * width / unit)
        # a side shorter than a token becomes one token, and the other at most the budget
        if rows == 0:
            rows, columns = 1, min(width // height, budget)
        elif columns == 0:
            rows, columns = min(height // width, budget), 1
        return rows * unit, columns * unit

    def positions(self, tokens: Sequence[int], runs: Sequence[tuple[int, Tile]]) -> None:
        """Return None: the positions of this model are the plain indices."""
