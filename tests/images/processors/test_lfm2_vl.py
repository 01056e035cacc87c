"""The processor of LFM2-VL against transformers, whose own one resizes by torchvision.

Pillow and torchvision round some resized pixels differently, by one of 255 levels. Images that need
no resizing have equal bits.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from image_files import picture
from processors import prepared, processor_of
from torchvision_stand_in import module_with_torchvision

from pybatcher.errors import ModelFormatError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from transformers.models.lfm2_vl.modeling_lfm2_vl import Lfm2VlMultiModalProjector  # noqa: E402
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor  # noqa: E402
from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionEmbeddings  # noqa: E402

VISION = {"patch_size": 4, "num_patches": 64}
SETTINGS = {
    "encoder_patch_size": 4,
    "tile_size": 32,
    "min_image_tokens": 4,
    "max_image_tokens": 16,
}
CASES: list[Any] = [
    ({}, {}, [(512, 512), (400, 600), (900, 1300)]),
    (
        VISION,
        SETTINGS,
        [(8, 8), (16, 24), (5, 7), (1, 90), (40, 30), (64, 96), (300, 40), (99, 99), (95, 41)],
    ),
    (VISION, {**SETTINGS, "do_image_splitting": False}, [(64, 96), (7, 9)]),
    (VISION, {**SETTINGS, "use_thumbnail": False, "max_tiles": 4}, [(64, 96), (300, 40)]),
]


def text_of(oracle: Any, expected: Any, image: tuple[int, int], marks: bool = True) -> str:
    tokens = {
        "image_token": "<image>",
        "image_start_token": "<|image_start|>",
        "image_end_token": "<|image_end|>",
        "image_thumbnail_token": "<|img_thumbnail|>",
    }
    itself = SimpleNamespace(image_processor=oracle, **tokens)
    for name in (
        "_get_image_num_tokens",
        "_build_image_tokens",
        "_compute_tokens_per_tile",
        "_compute_tokens_for_image",
    ):
        setattr(itself, name, getattr(Lfm2VlProcessor, name).__get__(itself))
    return Lfm2VlProcessor.replace_image_token(itself, expected, 0, use_image_special_tokens=marks)


@pytest.mark.parametrize(("vision", "settings", "sizes"), CASES, ids=str)
def test_tiles_and_texts_are_those_of_transformers(
    vision: Any, settings: Any, sizes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_with_torchvision(
        "transformers.models.lfm2_vl.image_processing_lfm2_vl", monkeypatch
    )
    oracle = module.Lfm2VlImageProcessor(**settings)
    processor = processor_of("lfm2_vl", vision, settings)
    level = 2 / 255 + 1e-6
    for size in sizes:
        image = picture(*size)
        found = prepared(processor, image)
        expected = oracle([[image]], return_row_col_info=True, return_tensors="np")
        assert len(found.tiles) == len(expected["pixel_values"])
        for at, tile in enumerate(found.tiles):
            assert tile.grid[1:] == tuple(expected["spatial_shapes"][at])
            row, column = tile.coordinates.T
            values = expected["pixel_values"][at][row * tile.grid[2] + column]
            assert np.abs(tile.patches - values).max() <= level
            assert (tile.patches != values).mean() < 0.1
        assert found.text == text_of(oracle, expected, size)
        assert found.n_tokens == found.text.count("<image>")


def test_an_image_of_the_right_size_has_equal_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_with_torchvision(
        "transformers.models.lfm2_vl.image_processing_lfm2_vl", monkeypatch
    )
    image = picture(16, 24)
    expected = module.Lfm2VlImageProcessor(**SETTINGS)([[image]], return_tensors="np")
    tile = prepared(processor_of("lfm2_vl", VISION, SETTINGS), image).tiles[0]
    row, column = tile.coordinates.T
    assert np.array_equal(tile.patches, expected["pixel_values"][0][row * 6 + column])


def test_without_marks_there_are_image_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_with_torchvision(
        "transformers.models.lfm2_vl.image_processing_lfm2_vl", monkeypatch
    )
    oracle = module.Lfm2VlImageProcessor(**SETTINGS)
    processor = processor_of(
        "lfm2_vl", VISION, SETTINGS, processor={"use_image_special_tokens": False}
    )
    for size in [(64, 96), (9, 9)]:
        expected = oracle([[picture(*size)]], return_row_col_info=True, return_tensors="np")
        text = prepared(processor, picture(*size)).text
        assert text == text_of(oracle, expected, size, marks=False)
        assert text.replace("<image>", "") == ""


@pytest.mark.parametrize("size", [(64, 96), (8, 128), (300, 40), (9, 9), (32, 32)])
def test_positions_are_those_of_transformers(size: tuple[int, int]) -> None:
    table = torch.randn(8, 8, 5)
    for tile in prepared(processor_of("lfm2_vl", VISION, SETTINGS), picture(*size)).tiles:
        shapes = torch.tensor([tile.grid[1:]])
        expected = Siglip2VisionEmbeddings.resize_positional_embeddings(
            table, shapes, max_length=len(tile.pixels)
        )[0].numpy()
        row, column = tile.coordinates.T
        rows = table.reshape(64, 5).numpy()[tile.table_index]
        found = (rows * tile.table_weight[..., None]).sum(axis=1)
        assert np.abs(found - expected[row * tile.grid[2] + column]).max() < 1e-5
        assert (tile.table_index.dtype, tile.table_weight.dtype) == (np.int32, np.float32)
        assert np.allclose(tile.table_weight.sum(axis=1), 1)


def test_patches_of_a_token_are_in_the_order_of_the_projector() -> None:
    tile = prepared(processor_of("lfm2_vl", VISION, SETTINGS), picture(24, 32)).tiles[0]
    rows, columns = tile.grid[1:]
    raster = torch.arange(float(rows * columns)).reshape(1, rows, columns, 1)
    expected = Lfm2VlMultiModalProjector.pixel_unshuffle(SimpleNamespace(factor=2), raster)
    row, column = tile.coordinates.T
    assert np.array_equal((row * columns + column).reshape(-1, 4), expected.reshape(-1, 4).numpy())


def test_low_detail_does_not_split() -> None:
    processor = processor_of("lfm2_vl", VISION, SETTINGS)
    assert len(prepared(processor, picture(99, 99)).tiles) > 1
    assert len(prepared(processor, picture(99, 99), "low").tiles) == 1


ODD_SETTINGS = [
    ({"num_patches": 60}, {}, "num_patches is 60; expected a square number"),
    ({"patch_size": 16}, {"encoder_patch_size": 8}, "encoder_patch_size is 8; expected 16"),
    ({}, {"downsample_factor": 3}, "downsample_factor is 3; expected 2"),
    ({}, {"tile_size": 100}, "tile_size is 100; expected a multiple of 32"),
    ({}, {"min_tiles": 0}, "min_tiles is 0"),
    ({}, {"max_tiles": 1000}, "max_tiles is 1000"),
    ({}, {"min_tiles": 4, "max_tiles": 3}, "max_tiles is 3; expected a whole number from 4"),
    ({}, {"min_image_tokens": 9, "max_image_tokens": 8}, "max_image_tokens is 8"),
    ({}, {"max_pixels_tolerance": float("nan")}, "max_pixels_tolerance is nan"),
    ({}, {"use_thumbnail": "no"}, "use_thumbnail is 'no'"),
]


@pytest.mark.parametrize(("vision", "settings", "expected"), ODD_SETTINGS, ids=str)
def test_odd_settings(vision: Any, settings: Any, expected: str) -> None:
    with pytest.raises(ModelFormatError, match=expected):
        processor_of("lfm2_vl", vision, settings)
