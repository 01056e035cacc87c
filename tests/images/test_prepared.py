from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from image_files import noise, picture
from processors import only_tile, prepared, processor_of

from pybatcher.images.prepared import Tile, make_tile

LEVELS = np.linspace(-1, 1, 3 * 256, dtype=np.float32).reshape(3, 256)


def tile_of(**changes: Any) -> Tile:
    values: dict[str, Any] = {
        "settings": "test 1",
        "pixels": noise(6, 12, 1)[..., 0],
        "levels": LEVELS,
        "coordinates": np.arange(12, dtype=np.int32).reshape(6, 2),
        "n_tokens": 3,
        "grid": (1, 2, 3),
    }
    return make_tile(**{**values, **changes})


@pytest.mark.parametrize("n", [1, 6, 256, 600])
def test_patches_are_the_levels_of_the_pixels(n: int) -> None:
    pixels = noise(n, 12, 1)[..., 0]
    first = tile_of(pixels=pixels).patches.reshape(n, 3, 4)
    last = tile_of(pixels=pixels, channels_first=False).patches.reshape(n, 4, 3)
    twice = tile_of(pixels=pixels, repeats=2).patches.reshape(n, 3, 2, 4)
    for channel, levels in enumerate(LEVELS):
        assert np.array_equal(first[:, channel], levels[pixels.reshape(n, 3, 4)[:, channel]])
        assert np.array_equal(last[..., channel], levels[pixels.reshape(n, 4, 3)[..., channel]])
        for frame in range(2):
            assert np.array_equal(twice[:, channel, frame], first[:, channel])
    assert {array.dtype for array in (first, last, twice)} == {np.dtype(np.float32)}


def changed(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flat[-1] += 1
    return array


CHANGES: dict[str, Any] = {
    "settings": "test 2",
    "pixels": changed(tile_of().pixels),
    "levels": changed(LEVELS),
    "coordinates": changed(tile_of().coordinates),
    "n_tokens": 6,
    "grid": (1, 3, 2),
    "channels_first": False,
    "repeats": 2,
    "table_index": np.zeros((6, 1), np.int32),
    "table_weight": np.ones((6, 1), np.float32),
    "windows": np.array([4, 2], np.int32),
    "order": np.array([2, 1, 0], np.int32),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_digest_depends_on_everything(name: str) -> None:
    assert len(tile_of().digest) == 32
    assert tile_of().digest == tile_of().digest
    assert tile_of(**{name: CHANGES[name]}).digest != tile_of().digest


def test_arrays_of_the_same_bytes_and_another_shape_have_another_digest() -> None:
    pixels = tile_of().pixels
    assert tile_of(pixels=pixels.reshape(12, 6)).digest != tile_of().digest
    both = [{"windows": np.arange(4, dtype=np.int32)}, {"order": np.arange(4, dtype=np.int32)}]
    assert len({tile_of(**change).digest for change in both}) == 2


def test_the_same_image_has_the_same_digest_whatever_it_was_read_from() -> None:
    processor = processor_of("qwen3_5", {"patch_size": 16}, {"patch_size": 16})
    image = picture(64, 96)
    digest = only_tile(prepared(processor, image)).digest
    assert only_tile(prepared(processor, image.convert("RGBA"))).digest == digest
    assert only_tile(prepared(processor, picture(96, 64))).digest != digest
    other = processor_of("qwen3_5", {"patch_size": 16}, {"patch_size": 16, "image_std": 0.25})
    assert only_tile(prepared(other, image)).digest != digest
