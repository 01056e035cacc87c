from __future__ import annotations

import numpy as np
import pytest
from image_files import noise

from pybatcher.images.patches import CLIP, HALF, cut, grid_coordinates, read_levels
from pybatcher.loading.checkpoints.fields import Fields

pytest.importorskip("transformers")
from transformers.image_transforms import normalize, rescale


@pytest.mark.parametrize("statistics", [CLIP, HALF], ids=["CLIP", "half"])
def test_levels_are_the_values_that_transformers_computes(statistics: tuple) -> None:
    every = np.arange(256, dtype=np.uint8).reshape(1, 1, 256).repeat(3, axis=0)
    for scale in (1 / 255, 1 / 127.5):
        found = read_levels(Fields({"rescale_factor": scale}, "file"), statistics)
        expected = normalize(rescale(every, scale), *statistics, input_data_format="channels_first")
        assert np.array_equal(found, expected[:, 0])
    unscaled = read_levels(Fields({"do_rescale": False}, "file"), statistics)
    assert np.array_equal(
        unscaled, normalize(every, *statistics, input_data_format="channels_first")[:, 0]
    )
    plain = read_levels(Fields({}, "file"), statistics, normalizes=False)
    assert np.array_equal(plain, rescale(every, 1 / 255, input_data_format="channels_first")[:, 0])


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
    assert grid_coordinates(6, 9, 3)[:4].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0]]
