"""The processor of Gemma 4 against transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from image_files import SIZES, WHERE, picture
from processors import only_tile, prepared, processor_of

from pybatcher.errors import InvalidRequestError, ModelFormatError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from transformers.models.gemma4.image_processing_pil_gemma4 import (  # noqa: E402
    Gemma4ImageProcessorPil,
)
from transformers.models.gemma4.modeling_gemma4 import Gemma4VisionPatchEmbedder  # noqa: E402
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor  # noqa: E402

VISION = {"patch_size": 4, "pooling_kernel_size": 3, "position_embedding_size": 1000}
SETTINGS = {"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 140}
CASES = [
    ({}, {}),
    (VISION, SETTINGS),
    ({**VISION, "pooling_kernel_size": 2}, {**SETTINGS, "pooling_kernel_size": 2, "resample": 2}),
]
EVERY_SIZE = [*SIZES, (3, 900), (900, 2), (2, 5000), (1, 65_000)]


@pytest.mark.parametrize(("vision", "settings"), CASES, ids=str)
def test_patches_positions_and_texts_are_those_of_transformers(vision: Any, settings: Any) -> None:
    processor = processor_of("gemma4", vision, settings)
    oracle = Gemma4ImageProcessorPil(**settings)
    merge = settings.get("pooling_kernel_size", 3)
    for height, width in EVERY_SIZE:
        image = picture(height, width)
        found = prepared(processor, image)
        tile = only_tile(found)
        expected = oracle([image], return_tensors="np")
        n_patches = (expected["image_position_ids"][0, :, 0] >= 0).sum()
        row, column = tile.coordinates.T
        at = row * tile.grid[2] + column
        assert sorted(at) == list(range(n_patches))
        values = expected["pixel_values"][0, at]
        assert np.array_equal(tile.patches, 2 * (values - np.float32(0.5)))
        assert np.array_equal(tile.coordinates[:, ::-1], expected["image_position_ids"][0, at])
        itself = SimpleNamespace(
            boi_token="<|image>", image_token="<|image|>", eoi_token="<image|>"
        )
        assert found.text == Gemma4Processor.replace_image_token(itself, expected, 0)
        assert found.n_tokens == expected["num_soft_tokens_per_image"][0] == n_patches // merge**2
        groups = (row // merge) * (tile.grid[2] // merge) + column // merge
        assert np.array_equal(groups, np.arange(n_patches) // merge**2)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I", "I;16"])
def test_images_of_every_mode(mode: str) -> None:
    image = picture(99, 131, mode)
    expected = Gemma4ImageProcessorPil(**SETTINGS)([image], return_tensors="np")
    tile = only_tile(prepared(processor_of("gemma4", VISION, SETTINGS), image))
    row, column = tile.coordinates.T
    values = expected["pixel_values"][0, row * tile.grid[2] + column]
    assert np.array_equal(tile.patches, 2 * (values - np.float32(0.5)))


def test_rows_of_the_position_tables_are_those_of_transformers() -> None:
    tile = only_tile(prepared(processor_of("gemma4", VISION, SETTINGS), picture(90, 150)))
    table = torch.randn(2, 1000, 5)
    positions = torch.tensor(tile.coordinates[:, ::-1].copy())[None]
    expected = Gemma4VisionPatchEmbedder._position_embeddings(
        SimpleNamespace(position_embedding_table=table),
        positions,
        torch.zeros(positions.shape[:2], dtype=torch.bool),
    )
    rows = table.reshape(2000, 5).numpy()[tile.table_index]
    assert np.array_equal((rows * tile.table_weight[..., None]).sum(1), expected[0].numpy())
    assert tile.table_index.dtype == np.int32


def test_low_detail_takes_fewer_tokens() -> None:
    processor, image = processor_of("gemma4", VISION, SETTINGS), picture(400, 400)
    assert prepared(processor, image, "low").n_tokens <= 70 < prepared(processor, image).n_tokens


def test_more_patches_than_positions_are_refused() -> None:
    processor = processor_of("gemma4", {**VISION, "position_embedding_size": 40}, SETTINGS)
    assert prepared(processor, picture(100, 100)).n_tokens > 100
    with pytest.raises(InvalidRequestError, match="and takes 40 along a side: crop it") as caught:
        prepared(processor, picture(10, 900))
    assert caught.value.field == WHERE


ODD_SETTINGS = [
    ({**VISION, "patch_size": 0}, {}, "patch_size is 0"),
    (VISION, {**SETTINGS, "patch_size": 16}, "patch_size is 16; expected 4, as in config.json"),
    (VISION, {**SETTINGS, "pooling_kernel_size": 2}, "pooling_kernel_size is 2; expected 3"),
    (VISION, {**SETTINGS, "max_soft_tokens": 100}, "max_soft_tokens is 100; expected one of"),
    (VISION, {**SETTINGS, "max_soft_tokens": True}, "max_soft_tokens is True"),
    ({**VISION, "position_embedding_size": -1}, SETTINGS, "position_embedding_size is -1"),
]


@pytest.mark.parametrize(("vision", "settings", "expected"), ODD_SETTINGS, ids=str)
def test_odd_settings(vision: Any, settings: Any, expected: str) -> None:
    with pytest.raises(ModelFormatError, match=expected):
        processor_of("gemma4", vision, settings)
