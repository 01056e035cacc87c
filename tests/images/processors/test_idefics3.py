"""The processor of Idefics 3 and SmolVLM against transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from image_files import SIZES, picture
from processors import prepared, processor_of

from pybatcher.errors import ModelFormatError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor  # noqa: E402
from transformers.models.smolvlm.configuration_smolvlm import SmolVLMVisionConfig  # noqa: E402
from transformers.models.smolvlm.image_processing_pil_smolvlm import (  # noqa: E402
    SmolVLMImageProcessorPil,
)
from transformers.models.smolvlm.modeling_smolvlm import (  # noqa: E402
    SmolVLMConnector,
    SmolVLMVisionEmbeddings,
)
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string  # noqa: E402

SETTINGS: dict[str, tuple[Any, Any, Any]] = {
    "as published": (
        {"image_size": 512, "patch_size": 16},
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        {"scale_factor": 4},
    ),
    "small": (
        {"image_size": 48, "patch_size": 8},
        {"size": {"longest_edge": 200}, "max_image_size": {"longest_edge": 48}},
        {"scale_factor": 3},
    ),
    "whole": (
        {"image_size": 64, "patch_size": 8},
        {
            "size": {"longest_edge": 200},
            "max_image_size": {"longest_edge": 32},
            "do_image_splitting": False,
            "resample": 3,
        },
        {"scale_factor": 2},
    ),
}


def sizes_of(name: str) -> list[tuple[int, int]]:
    return [(90, 120), (700, 33)] if name == "as published" else [*SIZES, (48, 48), (200, 96)]


@pytest.mark.parametrize("name", SETTINGS)
def test_tiles_and_texts_are_those_of_transformers(name: str) -> None:
    vision, settings, config = SETTINGS[name]
    processor = processor_of("smolvlm", vision, settings, config=config)
    oracle = SmolVLMImageProcessorPil(**settings)
    patch = vision["patch_size"]
    for height, width in sizes_of(name):
        image = picture(height, width)
        found = prepared(processor, image)
        expected = oracle([[image]], return_row_col_info=True, return_tensors="pt")
        assert len(found.tiles) == expected["pixel_values"].shape[1]
        assert expected["pixel_attention_mask"].all()
        for tile, pixels in zip(found.tiles, expected["pixel_values"][0], strict=True):
            patches = torch.nn.functional.unfold(pixels[None], patch, stride=patch)[0].T
            row, column = tile.coordinates.T
            assert np.array_equal(tile.patches, patches[row * tile.grid[2] + column].numpy())
        n_tokens = found.tiles[0].n_tokens
        assert {tile.n_tokens for tile in found.tiles} == {n_tokens}
        rows, columns = expected["rows"][0][0], expected["cols"][0][0]
        tokens = ("<fake_token_around_image>", "<image>", "<global-img>")
        assert found.text == get_image_prompt_string(rows, columns, n_tokens, *tokens)
        names = ("fake_image_token", "image_token", "global_image_tag")
        itself = SimpleNamespace(image_seq_len=n_tokens, **dict(zip(names, tokens, strict=True)))
        assert found.text == Idefics3Processor.replace_image_token(itself, expected, 0)
        assert found.n_tokens == found.text.count(processor.image_token)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I", "I;16"])
def test_images_of_every_mode(mode: str) -> None:
    vision, settings, config = SETTINGS["small"]
    image = picture(99, 131, mode)
    found = prepared(processor_of("idefics3", vision, settings, config=config), image)
    expected = SmolVLMImageProcessorPil(**settings)([[image]], return_tensors="pt")
    pixels = expected["pixel_values"][0, -1]
    patches = torch.nn.functional.unfold(pixels[None], 8, stride=8)[0].T.numpy()
    row, column = found.tiles[-1].coordinates.T
    assert np.array_equal(found.tiles[-1].patches, patches[row * 6 + column])


@pytest.mark.parametrize(("image_size", "tile", "patch"), [(64, 64, 8), (96, 32, 8), (56, 112, 14)])
def test_positions_are_those_of_transformers(image_size: int, tile: int, patch: int) -> None:
    vision = {"image_size": image_size, "patch_size": patch}
    settings = {"max_image_size": {"longest_edge": tile}, "do_image_splitting": False}
    processor = processor_of("smolvlm", vision, settings)
    found = prepared(processor, picture(50, 70)).tiles[0]
    model = SmolVLMVisionEmbeddings(SmolVLMVisionConfig(**vision, hidden_size=1))
    n_positions = (image_size // patch) ** 2
    with torch.no_grad():
        model.patch_embedding.weight.zero_()
        model.patch_embedding.bias.zero_()
        model.position_embedding.weight[:, 0] = torch.arange(n_positions).float()
        side = tile // patch
        mask = torch.ones(1, side, side, dtype=torch.bool)
        expected = model(torch.zeros(1, 3, tile, tile), mask)[0, :, 0].numpy()
    row, column = found.coordinates.T
    assert np.array_equal(found.table_index[:, 0], expected[row * side + column])
    assert found.table_index.dtype == np.int32
    assert (found.table_weight == 1).all()


def test_patches_of_a_token_are_in_the_order_of_the_connector() -> None:
    vision, settings, config = SETTINGS["small"]
    tile = prepared(processor_of("smolvlm", vision, settings, config=config), picture(9, 9)).tiles[
        0
    ]
    raster = torch.arange(36.0).reshape(1, 36, 1)
    expected = SmolVLMConnector.pixel_shuffle(None, raster, 3)[0].numpy()
    row, column = tile.coordinates.T
    assert np.array_equal((row * 6 + column).reshape(-1, 9), expected)


def test_low_detail_does_not_split() -> None:
    vision, settings, config = SETTINGS["small"]
    processor = processor_of("smolvlm", vision, settings, config=config)
    assert len(prepared(processor, picture(100, 100)).tiles) == 26
    assert len(prepared(processor, picture(100, 100), "low").tiles) == 1


def test_very_large_settings_are_bounded() -> None:
    settings = {"size": {"longest_edge": 5000}, "max_image_size": {"longest_edge": 2048}}
    vision = {"image_size": 2048, "patch_size": 256}
    found = prepared(processor_of("smolvlm", vision, settings), picture(20, 40))
    expected = SmolVLMImageProcessorPil(**settings)([[picture(20, 40)]], return_tensors="np")
    assert len(found.tiles) == expected["pixel_values"].shape[1] == 3


ODD_SETTINGS = [
    ({"patch_size": "a"}, {}, {}, "patch_size is 'a'"),
    ({"image_size": 64, "patch_size": 8}, {"max_image_size": {"longest_edge": 60}}, {}, "is 60; e"),
    ({"image_size": 64, "patch_size": 8}, {"max_image_size": 5}, {}, "max_image_size is 5"),
    ({"image_size": 64, "patch_size": 8}, {"size": {"longest_edge": 0}}, {}, "longest_edge is 0"),
    ({"image_size": 64, "patch_size": 8}, {"do_image_splitting": 1}, {}, "do_image_splitting is 1"),
    ({"image_size": 64, "patch_size": 8}, {}, {"scale_factor": 3}, "a multiple of 24"),
    ({"image_size": 64, "patch_size": 8}, {}, {"scale_factor": 0}, "scale_factor is 0"),
    ({"image_size": 4, "patch_size": 8}, {}, {}, "image_size is 4"),
]


@pytest.mark.parametrize(("vision", "settings", "config", "expected"), ODD_SETTINGS, ids=str)
def test_odd_settings(vision: Any, settings: Any, config: Any, expected: str) -> None:
    with pytest.raises(ModelFormatError, match=expected):
        processor_of("smolvlm", vision, settings, config=config)


def test_the_number_of_tokens_must_be_that_of_the_tower() -> None:
    vision, settings, config = SETTINGS["as published"]
    good, bad = {"image_seq_len": 64}, {"image_seq_len": 169}
    processor_of("smolvlm", vision, settings, config=config, processor=good)
    with pytest.raises(ModelFormatError, match="image_seq_len is 169; expected 64"):
        processor_of("smolvlm", vision, settings, config=config, processor=bad)
