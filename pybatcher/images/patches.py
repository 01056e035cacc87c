"""Resizing an image and cutting it into patches, with the coordinates of the patches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .reading import DecodedImage

__all__ = ["cut", "grid_coordinates", "raster_index", "resized", "scaled"]


def scaled(image: DecodedImage, height: int, width: int, resample: int) -> DecodedImage:
    """Return an image in another size."""
    from PIL import Image

    found = image.image.resize((width, height), Image.Resampling(resample))
    return DecodedImage(found, image.where)


def resized(image: DecodedImage, height: int, width: int, resample: int) -> NDArray[np.uint8]:
    """Return the pixels of an image in another size: uint8 (height, width, 3)."""
    return scaled(image, height, width, resample).pixels


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


def raster_index(coordinates: NDArray[np.int32], columns: int) -> NDArray[np.int32]:
    """Return the index of each patch in a grid read row by row: int32 (n, 1)."""
    index: NDArray[np.int32] = coordinates[:, :1] * np.int32(columns) + coordinates[:, 1:]
    return index
