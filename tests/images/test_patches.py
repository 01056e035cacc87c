from __future__ import annotations

import numpy as np
from image_files import noise

from pybatcher.images.patches import cut, grid_coordinates, raster_index


def test_patches_and_coordinates_agree() -> None:
    pixels = noise(4 * 6, 4 * 9)
    for merge in (1, 3):
        coordinates = grid_coordinates(6, 9, merge)
        for channels_first in (True, False):
            patches = cut(pixels, 4, merge, channels_first=channels_first)
            assert len(patches) == len(coordinates) == 54
            for patch, (row, column) in zip(patches, coordinates, strict=True):
                expected = pixels[4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
                if channels_first:
                    expected = expected.transpose(2, 0, 1)
                assert np.array_equal(patch, expected.reshape(-1))
        assert raster_index(coordinates, 9)[:, 0].tolist() == [9 * y + x for y, x in coordinates]
    assert grid_coordinates(6, 9, 3)[:4].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0]]
