"""Pixtral, as in Mistral 3: sizes by the longest side, a token at the end of each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..patches import cut, grid_coordinates, resized
from ..prepared import PreparedImage, Tile, make_tile
from ..reading import DecodedImage
from ..settings import BICUBIC, CLIP, ProcessorFiles, read_levels, read_resample

__all__ = ["PixtralProcessor"]

_LOW_DETAIL_SIDE = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PixtralProcessor:
    """The processor of Pixtral.

    longest: the longest side of a resized image.
    n_positions: the most patches along a side.
    merge: merge x merge patches become one token.
    break_token, end_token: texts of the tokens after each row of tokens, and after the last one.
    """

    levels: NDArray[np.float32]
    resample: int
    longest: int
    n_positions: int
    patch: int
    merge: int
    image_token: str
    break_token: str
    end_token: str

    @property
    def placeholder(self) -> str:
        """The text that the chat template writes for an image."""
        return self.image_token

    @classmethod
    def read(cls, files: ProcessorFiles) -> PixtralProcessor:
        """Read the settings of a checkpoint. Raises ModelFormatError for odd ones."""
        preprocessor, processor = files.preprocessor, files.processor
        patch = files.vision.integer("patch_size", 1, 256, 16)
        merge = files.config.integer("spatial_merge_size", 1, 16, 2)
        files.equal(processor, "patch_size", patch)
        files.equal(processor, "spatial_merge_size", merge)
        side = files.vision.integer("image_size", patch * merge, 2**16, 1024)
        longest = files.edges().integer("longest_edge", 1, 2**16, side)
        return cls(
            levels=read_levels(preprocessor, CLIP),
            resample=read_resample(preprocessor, BICUBIC),
            longest=longest,
            n_positions=side // patch,
            patch=patch,
            merge=merge,
            image_token=processor.text("image_token", "[IMG]"),
            break_token=processor.text("image_break_token", "[IMG_BREAK]"),
            end_token=processor.text("image_end_token", "[IMG_END]"),
        )

    def prepare(self, image: DecodedImage, detail: str = "auto") -> PreparedImage:
        """Resize, normalise and cut an image; see `ImageProcessor.prepare`."""
        unit = self.patch * self.merge
        longest = self.longest
        if detail == "low":
            longest = min(longest, max(_LOW_DETAIL_SIDE, unit))
        height, width = image.height, image.width
        ratio = max(height / longest, width / longest)
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        if min(height, width) < 1:
            raise image.error(
                f"this model takes images whose longer side is at most {longest} times the "
                "shorter one: crop it"
            )
        rows, columns = math.ceil(height / unit), math.ceil(width / unit)
        if max(rows, columns) * self.merge > self.n_positions:
            raise image.error(
                f"this model would cut it into {columns * self.merge} x {rows * self.merge} "
                f"patches and takes {self.n_positions} along a side: scale it down"
            )
        coordinates = grid_coordinates(rows * self.merge, columns * self.merge, self.merge)
        pixels = resized(image, rows * unit, columns * unit, self.resample)
        tile = make_tile(
            settings=f"pixtral {self.merge}",
            pixels=cut(pixels, self.patch, self.merge),
            levels=self.levels,
            coordinates=coordinates,
            n_tokens=rows * columns,
            grid=(1, rows * self.merge, columns * self.merge),
        )
        row = self.image_token * columns
        return PreparedImage((tile,), self.break_token.join([row] * rows) + self.end_token)

    def positions(self, tokens: Sequence[int], runs: Sequence[tuple[int, Tile]]) -> None:
        """Return None: the positions of this model are the plain indices."""
