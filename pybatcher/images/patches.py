"""Steps that processors share: settings of a preprocessor, resizing, and cutting into patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelFormatError
from .reading import DecodedImage

__all__ = [
    "BICUBIC",
    "BILINEAR",
    "CLIP",
    "HALF",
    "LANCZOS",
    "MAX_SETTING",
    "JsonFields",
    "cut",
    "grid_coordinates",
    "read_levels",
    "read_resample",
    "resized",
]

LANCZOS, BILINEAR, BICUBIC = 1, 2, 3
"""Filters by the numbers that Pillow and the files of checkpoints have for them."""
_FILTERS = 6

CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""Means and standard deviations of the channels, from pixel values between 0 and 1."""

MAX_SETTING = 2**28
"""The largest number of pixels or of patches in a setting of a checkpoint."""


class JsonFields(Protocol):
    """The object of a JSON file: the part of `loading.checkpoints.fields.Fields` that is used here.

    The accessors raise ModelFormatError, which names the file, the field, its value and the
    expected one.
    """

    def __contains__(self, name: str) -> bool: ...

    def get(self, name: str) -> Any:
        """Return the unchecked value; None if the field is absent."""

    def error(self, name: str, expected: str) -> ModelFormatError:
        """Return the error for a value that is not the `expected` one."""

    def integer(self, name: str, low: int, high: int, default: Any = ...) -> Any:
        """Return a whole number from `low` to `high`."""

    def number(self, name: str, low: float, high: float, default: Any = ...) -> Any:
        """Return a number from `low` to `high`."""

    def numbers(self, name: str, count: int, low: float, high: float) -> list[float]:
        """Return a list of `count` numbers from `low` to `high`."""

    def boolean(self, name: str, default: bool) -> bool:
        """Return True or False."""

    def text(self, name: str, default: Any = ...) -> Any:
        """Return a text."""

    def child(self, name: str) -> JsonFields:
        """Return the object in a field; it has no fields if the field is absent."""


def read_resample(fields: JsonFields, default: int) -> int:
    """Return the filter for resizing, a number of Pillow's."""
    found: int = fields.integer("resample", 0, _FILTERS - 1, default)
    return found


def read_levels(
    fields: JsonFields,
    statistics: tuple[Sequence[float], Sequence[float]],
    *,
    normalizes: bool = True,
) -> NDArray[np.float32]:
    """Return the normalised value of each pixel value: float32 (3, 256).

    statistics: the means and standard deviations if the file has none.
    normalizes: True if the processor normalises unless the file says otherwise.

    A value is rescaled in float64 and rounded to float32, then normalised in float32.
    """
    levels = np.arange(256, dtype=np.float32)
    if fields.boolean("do_rescale", True):
        scale = fields.number("rescale_factor", 1e-9, 1e9, 1 / 255)
        levels = (levels.astype(np.float64) * scale).astype(np.float32)
    if not fields.boolean("do_normalize", normalizes):
        return np.tile(levels, (3, 1))
    mean = statistics[0] if "image_mean" not in fields else _per_channel(fields, "image_mean", -1e9)
    std = statistics[1] if "image_std" not in fields else _per_channel(fields, "image_std", 1e-9)
    means, stds = np.array(mean, np.float32)[:, None], np.array(std, np.float32)[:, None]
    return (levels - means) / stds


def _per_channel(fields: JsonFields, name: str, low: float) -> list[float]:
    if isinstance(fields.get(name), list):
        return fields.numbers(name, 3, low, 1e9)
    return [fields.number(name, low, 1e9)] * 3


def resized(image: DecodedImage, height: int, width: int, resample: int) -> NDArray[np.uint8]:
    """Return the pixels of an image in another size: uint8 (height, width, 3)."""
    from PIL import Image

    return np.asarray(image.image.resize((width, height), Image.Resampling(resample)))


def cut(
    pixels: NDArray[np.uint8], patch: int, merge: int = 1, *, channels_first: bool = True
) -> NDArray[np.uint8]:
    """Cut pixels (height, width, channels) into patches: uint8 (n, channels * patch * patch).

    merge: squares of merge x merge patches are consecutive, row by row in themselves and in the
        image. The sides of the image are multiples of patch * merge.
    channels_first: the columns are (channels, rows, columns of a patch), otherwise (rows, columns,
        channels).
    """
    height, width, channels = pixels.shape
    blocks = pixels.reshape(
        height // (patch * merge), merge, patch, width // (patch * merge), merge, patch, channels
    )
    order = (0, 3, 1, 4, 6, 2, 5) if channels_first else (0, 3, 1, 4, 2, 5, 6)
    return blocks.transpose(order).reshape(-1, channels * patch * patch)


def grid_coordinates(rows: int, columns: int, merge: int = 1) -> NDArray[np.int32]:
    """Return row and column of each patch in the order of `cut`: int32 (rows * columns, 2)."""
    grid = np.indices((rows, columns), dtype=np.int32)
    blocks = grid.reshape(2, rows // merge, merge, columns // merge, merge)
    return np.ascontiguousarray(blocks.transpose(1, 3, 2, 4, 0).reshape(-1, 2))
