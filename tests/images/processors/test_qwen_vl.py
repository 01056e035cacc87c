"""The processor of Qwen-VL models against transformers: pixels, texts, positions, windows."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from image_files import SIZES, WHERE, picture
from processors import only_tile, prepared, processor_of

from pybatcher.errors import InvalidRequestError, ModelFormatError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from transformers import vision_utils  # noqa: E402
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (  # noqa: E402
    Qwen2VLImageProcessorPil,
)
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor  # noqa: E402
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel  # noqa: E402

QWEN3 = {
    "size": {"shortest_edge": 4096, "longest_edge": 65536},
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
QWEN2 = {"min_pixels": 3136, "max_pixels": 100_000, "patch_size": 14, "merge_size": 2}
SETTINGS = {
    "qwen3_5": ({"patch_size": 16, "num_position_embeddings": 2304}, QWEN3),
    "qwen3_vl": ({"patch_size": 16, "num_position_embeddings": 49}, QWEN3),
    "qwen2_5_vl": ({"patch_size": 14, "window_size": 112}, QWEN2),
    "qwen2_vl": ({"patch_size": 14}, {}),
    "qwen3_vl_moe": (
        {"patch_size": 4, "spatial_merge_size": 3, "temporal_patch_size": 1},
        {
            "size": {"shortest_edge": 900, "longest_edge": 20_000},
            "patch_size": 4,
            "merge_size": 3,
            "temporal_patch_size": 1,
            "resample": 1,
            "rescale_factor": 1 / 127.5,
        },
    ),
}


def as_in_raster_order(values: Any, order: Any, group: int) -> np.ndarray:
    """Return rows of a tile in the order that they have without windows."""
    if order is None:
        return np.asarray(values)
    return values.reshape(len(order), group, -1)[order].reshape(values.shape)


@pytest.mark.parametrize("model_type", SETTINGS)
def test_pixels_and_texts_are_those_of_transformers(model_type: str) -> None:
    vision, settings = SETTINGS[model_type]
    processor = processor_of(model_type, vision, settings)
    oracle = Qwen2VLImageProcessorPil(**settings)
    group = settings.get("merge_size", 2) ** 2
    for height, width in SIZES:
        image = picture(height, width)
        found = prepared(processor, image)
        tile = only_tile(found)
        expected = oracle([image], return_tensors="np")
        patches = as_in_raster_order(tile.patches, tile.order, group)
        assert np.array_equal(patches, expected["pixel_values"])
        assert tile.grid == tuple(expected["image_grid_thw"][0])
        assert tile.n_tokens == found.n_tokens == len(patches) // group
        text = Qwen2VLProcessor.replace_image_token(
            SimpleNamespace(image_processor=oracle, image_token=processor.image_token), expected, 0
        )
        assert found.text == text
    assert processor.placeholder == processor.image_token == "<|image_pad|>"


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I", "I;16"])
def test_images_of_every_mode(mode: str) -> None:
    image = picture(99, 131, mode)
    expected = Qwen2VLImageProcessorPil(**QWEN3)([image], return_tensors="np")
    tile = only_tile(prepared(processor_of("qwen3_vl", SETTINGS["qwen3_vl"][0], QWEN3), image))
    assert np.array_equal(tile.patches, expected["pixel_values"])


@pytest.mark.parametrize("model_type", SETTINGS)
def test_coordinates_are_those_of_transformers(model_type: str) -> None:
    vision, settings = SETTINGS[model_type]
    processor = processor_of(model_type, vision, settings)
    merge = settings.get("merge_size", 2)
    for height, width in SIZES:
        tile = only_tile(prepared(processor, picture(height, width)))
        grid = torch.tensor([tile.grid])
        expected = vision_utils.get_vision_position_ids(grid, merge)
        coordinates = as_in_raster_order(tile.coordinates, tile.order, merge**2)
        assert np.array_equal(coordinates, expected.numpy())
        assert tile.coordinates.dtype == np.int32


@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_vl", "qwen3_vl_moe"])
def test_interpolated_positions_are_those_of_transformers(model_type: str) -> None:
    vision, settings = SETTINGS[model_type]
    side = round(vision.get("num_position_embeddings", 2304) ** 0.5)
    for height, width in SIZES:
        processor = processor_of(model_type, vision, settings)
        tile = only_tile(prepared(processor, picture(height, width)))
        index, weight = vision_utils.get_vision_interpolation_indices_and_weights(
            torch.tensor([tile.grid]),
            num_grid_per_side=side,
            align_corners=True,
            spatial_merge_size=settings["merge_size"],
        )
        assert np.array_equal(tile.table_index, index.numpy())
        assert np.array_equal(tile.table_weight, weight.numpy())
        assert (tile.table_index.dtype, tile.table_weight.dtype) == (np.int32, np.float32)


def test_windows_are_those_of_transformers() -> None:
    vision, settings = SETTINGS["qwen2_5_vl"]
    processor = processor_of("qwen2_5_vl", vision, settings)
    for height, width in [*SIZES, (224, 224), (225, 112)]:
        tile = only_tile(prepared(processor, picture(height, width)))
        index, ends = vision_utils.get_vision_window_index(
            torch.tensor([tile.grid]), spatial_merge_size=2, window_size=112, patch_size=14
        )
        assert np.array_equal(tile.order, torch.argsort(index).numpy())
        assert np.array_equal(tile.windows, ends.diff().numpy())
        assert (tile.windows.dtype, tile.order.dtype) == (np.int32, np.int32)
        assert tile.table_index.shape == tile.table_weight.shape == (len(tile.pixels), 0)


def test_models_without_windows_have_none() -> None:
    tile = only_tile(prepared(processor_of("qwen2_vl", *SETTINGS["qwen2_vl"]), picture(99, 99)))
    assert tile.order is None
    assert tile.windows.shape == (0,)


def test_positions_of_a_prompt_are_those_of_transformers() -> None:
    processor = processor_of("qwen3_5", *SETTINGS["qwen3_5"])
    choose = random.Random(5)
    model = SimpleNamespace(
        config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2))
    )
    model.get_vision_position_ids = lambda *args, **kwargs: Qwen3VLModel.get_vision_position_ids(
        model, *args, **kwargs
    )
    tiles = [only_tile(prepared(processor, picture(*size))) for size in SIZES]
    for n_images in [0, 1, 1, 2, 3, 5]:
        kinds: list[int] = [0] * choose.randrange(4)
        runs = []
        for _ in range(n_images):
            tile = choose.choice(tiles)
            runs.append((len(kinds), tile))
            kinds += [1] * tile.n_tokens + [0] * choose.randrange(1, 9)
        if not kinds:
            continue
        expected, _ = Qwen3VLModel.get_rope_index(
            model,
            torch.zeros(1, len(kinds), dtype=torch.long),
            torch.tensor([kinds]),
            torch.tensor([tile.grid for _, tile in runs]) if runs else None,
        )
        found = processor.positions([0] * len(kinds), runs)
        assert np.array_equal(found, expected[:, 0].numpy())
        assert found.dtype == np.int32


def test_two_images_without_text_between_them_have_positions_of_their_own() -> None:
    processor = processor_of("qwen3_5", *SETTINGS["qwen3_5"])
    tile = only_tile(prepared(processor, picture(64, 128)))
    rows, columns = tile.grid[1] // 2, tile.grid[2] // 2
    found = processor.positions([0] * (2 * tile.n_tokens), [(0, tile), (tile.n_tokens, tile)])
    assert found[0].tolist() == [0] * tile.n_tokens + [max(rows, columns)] * tile.n_tokens


def test_low_detail_takes_fewer_tokens() -> None:
    vision, settings = SETTINGS["qwen3_vl"]
    large = {**settings, "size": {"shortest_edge": 4096, "longest_edge": 2**24}}
    processor, image = processor_of("qwen3_vl", vision, large), picture(1024, 1024)
    assert prepared(processor, image).n_tokens == 32 * 32
    assert prepared(processor, image, "high").n_tokens == 32 * 32
    assert prepared(processor, image, "low").n_tokens == 16 * 16
    assert prepared(processor, picture(64, 64), "low").n_tokens == 4


def test_an_image_that_is_too_long_is_refused() -> None:
    processor = processor_of("qwen3_vl", *SETTINGS["qwen3_vl"])
    assert prepared(processor, picture(2, 400)).n_tokens > 0
    for size, shown in [((1, 201), "201 x 1"), ((402, 2), "2 x 402")]:
        with pytest.raises(InvalidRequestError, match="at most 200 times the shorter") as caught:
            prepared(processor, picture(*size))
        assert f"has {shown} pixels" in str(caught.value)
        assert caught.value.field == WHERE


ODD_SETTINGS = [
    ({"patch_size": 0}, {}, r"patch_size is 0"),
    ({"patch_size": "16"}, {}, r"patch_size is '16'"),
    ({"patch_size": 16}, {"patch_size": 14}, r"patch_size is 14; expected 16, as in config.json"),
    ({"patch_size": 14}, {"merge_size": 3}, r"merge_size is 3; expected 2"),
    ({"patch_size": 14}, {"temporal_patch_size": 1}, r"temporal_patch_size is 1; expected 2"),
    ({"patch_size": 14, "num_position_embeddings": 48}, {}, r"48; expected a square number"),
    ({"patch_size": 14}, {"size": {"shortest_edge": -1}}, r"size: shortest_edge is -1"),
    ({"patch_size": 14}, {"size": 5}, r"size is 5; expected an object"),
    ({"patch_size": 14}, {"min_pixels": 100, "max_pixels": 10}, r"max_pixels is 10"),
    ({"patch_size": 14}, {"size": {"longest_edge": 5}}, r"longest_edge is 5; expected at least"),
    ({"patch_size": 14}, {"image_mean": [1, 2]}, r"image_mean is \[1, 2\]; expected a list of 3"),
    ({"patch_size": 14}, {"image_std": [0, 1, 1]}, r"image_std is \[0, 1, 1\]"),
    ({"patch_size": 14}, {"image_std": float("nan")}, r"image_std is nan"),
    ({"patch_size": 14}, {"rescale_factor": 0}, r"rescale_factor is 0"),
    ({"patch_size": 14}, {"do_rescale": "yes"}, r"do_rescale is 'yes'; expected true or false"),
    ({"patch_size": 14}, {"resample": 6}, r"resample is 6"),
]


@pytest.mark.parametrize(("vision", "settings", "expected"), ODD_SETTINGS, ids=str)
def test_odd_settings_of_a_checkpoint(vision: Any, settings: Any, expected: str) -> None:
    with pytest.raises(ModelFormatError, match=expected):
        processor_of("qwen3_vl", vision, settings)
