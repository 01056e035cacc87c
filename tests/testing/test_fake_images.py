"""The images of a `fake_batcher`: few tokens, and other ones for other pixels."""

from __future__ import annotations

import numpy as np
import pytest

from pybatcher.images import ImageLimits, Tile, read_image
from pybatcher.testing.fake_images import IMAGE_TOKEN, FakeImageProcessor


def tile(value: int, height: int, width: int, detail: str = "auto") -> Tile:
    pixels = np.full((height, width, 3), value, np.uint8)
    made = FakeImageProcessor().prepare(read_image(pixels, "image", ImageLimits()), detail)
    (one,) = made.tiles
    assert made.text == IMAGE_TOKEN * one.n_tokens
    assert len(one.coordinates) == len(one.pixels) == one.n_tokens
    return one


@pytest.mark.parametrize(
    ("height", "width", "grid"),
    [(1, 1, (1, 1, 1)), (32, 33, (1, 1, 2)), (96, 64, (1, 3, 2)), (5000, 70, (1, 8, 3))],
)
def test_a_token_stands_for_32_by_32_pixels(height: int, width: int, grid: object) -> None:
    made = tile(1, height, width)
    assert made.grid == grid
    assert tile(1, height, width, "low").n_tokens == 1


def test_other_pixels_make_another_tile() -> None:
    digests = {
        tile(*given).digest for given in [(1, 40, 40), (2, 40, 40), (1, 41, 40), (1, 40, 41)]
    }
    assert len(digests) == 4
    assert tile(1, 40, 40).digest in digests
