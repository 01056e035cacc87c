"""Gemma 3: one square of fixed size for every image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..patches import cut, grid_coordinates, raster_index, resized
from ..prepared import PreparedImage, Tile, make_tile
from ..reading import DecodedImage
from ..settings import BILINEAR, HALF, ProcessorFiles, read_levels, read_resample

__all__ = ["Gemma3Processor"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gemma3Processor:
    """The processor of Gemma 3, without the crops of "pan and scan", as in transformers.

    side: the sides of a resized image.
    merge: merge x merge patches become one token.
    start_token, end_token: texts of the tokens around the tokens of an image.
    """

    levels: NDArray[np.float32]
    resample: int
    side: int
    patch: int
    merge: int
    image_token: str
    start_token: str
    end_token: str

    @property
    def placeholder(self) -> str:
        """The text that the chat template writes for an image."""
        return self.start_token

    @classmethod
    def read(cls, files: ProcessorFiles) -> Gemma3Processor:
        """Read the settings of a checkpoint. Raises ModelFormatError for odd ones."""
        side = files.vision.integer("image_size", 1, 2**14, 224)
        patch = files.vision.integer("patch_size", 1, side, 16)
        n_tokens = files.config.integer("mm_tokens_per_image", 1, 2**16, 256)
        tokens_side = math.isqrt(n_tokens)
        if tokens_side**2 != n_tokens:
            raise files.config.error("mm_tokens_per_image", "a square number")
        merge = side // patch // tokens_side
        if merge * tokens_side * patch != side:
            raise files.config.error(
                "mm_tokens_per_image", f"the tokens of {side // patch} x {side // patch} patches"
            )
        size = files.preprocessor.child("size")
        files.equal(size, "height", side)
        files.equal(size, "width", side)
        files.equal(files.processor, "image_seq_length", n_tokens)
        return cls(
            levels=read_levels(files.preprocessor, HALF),
            resample=read_resample(files.preprocessor, BILINEAR),
            side=side,
            patch=patch,
            merge=merge,
            image_token=files.special_token("image_token", "<image_soft_token>"),
            start_token=files.special_token("boi_token", "<start_of_image>"),
            end_token=files.special_token("eoi_token", "<end_of_image>"),
        )

    def prepare(self, image: DecodedImage, detail: str = "auto") -> PreparedImage:
        """Resize, normalise and cut an image; see `ImageProcessor.prepare`."""
        patches_side = self.side // self.patch
        coordinates = grid_coordinates(patches_side, patches_side, self.merge)
        n_tokens = (patches_side // self.merge) ** 2
        tile = make_tile(
            settings=f"gemma3 {self.merge}",
            pixels=cut(resized(image, self.side, self.side, self.resample), self.patch, self.merge),
            levels=self.levels,
            coordinates=coordinates,
            n_tokens=n_tokens,
            grid=(1, patches_side, patches_side),
            table_index=raster_index(coordinates, patches_side),
        )
        tokens = self.image_token * n_tokens
        return PreparedImage((tile,), f"\n\n{self.start_token}{tokens}{self.end_token}\n\n")

    def positions(self, tokens: Sequence[int], runs: Sequence[tuple[int, Tile]]) -> None:
        """Return None: the positions of this model are the plain indices."""
