"""The processor of Pixtral, as Mistral 3 has it, against transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from image_files import SIZES, WHERE, picture
from processors import only_tile, prepared, processor_of
from torchvision_stand_in import module_with_torchvision

from pybatcher.errors import InvalidRequestError, ModelFormatError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from transformers.models.pixtral.image_processing_pil_pixtral import (  # noqa: E402
    PixtralImageProcessorPil,
)

VISION = {"image_size": 308, "patch_size": 14}
SETTINGS = {"size": {"longest_edge": 300}, "patch_size": {"height": 14, "width": 14}}
CONFIG = {"spatial_merge_size": 2}
PROCESSOR = {"patch_size": 14, "spatial_merge_size": 2}


@pytest.mark.parametrize("merge", [1, 2])
def test_patches_and_texts_are_those_of_transformers(
    merge: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_with_torchvision("transformers.models.pixtral.processing_pixtral", monkeypatch)
    processor = processor_of(
        "mistral3",
        VISION,
        SETTINGS,
        config={"spatial_merge_size": merge},
        processor={"patch_size": 14, "spatial_merge_size": merge},
    )
    oracle = PixtralImageProcessorPil(**SETTINGS)
    for height, width in [*SIZES, (308, 308), (29, 29), (28, 56)]:
        image = picture(height, width)
        found = prepared(processor, image)
        tile = only_tile(found)
        expected = oracle([image], patch_size=14 * merge, return_tensors="pt")
        patches = torch.nn.functional.unfold(expected["pixel_values"], 14, stride=14)[0].T.numpy()
        row, column = tile.coordinates.T
        assert np.array_equal(tile.patches, patches[row * tile.grid[2] + column])
        groups = (row // merge) * (tile.grid[2] // merge) + column // merge
        assert np.array_equal(groups, np.arange(len(groups)) // merge**2)
        itself = SimpleNamespace(
            patch_size=14,
            spatial_merge_size=merge,
            image_token="[IMG]",
            image_break_token="[IMG_BREAK]",
            image_end_token="[IMG_END]",
        )
        sizes = {"image_sizes": expected["image_sizes"].tolist()}
        assert found.text == module.PixtralProcessor.replace_image_token(itself, sizes, 0)
        assert found.text.count("[IMG]") == found.n_tokens == tile.n_tokens


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I", "I;16"])
def test_images_of_every_mode(mode: str) -> None:
    image = picture(99, 131, mode)
    expected = PixtralImageProcessorPil(**SETTINGS)([image], patch_size=28, return_tensors="pt")
    processor = processor_of("mistral3", VISION, SETTINGS, config=CONFIG, processor=PROCESSOR)
    tile = only_tile(prepared(processor, image))
    patches = torch.nn.functional.unfold(expected["pixel_values"], 14, stride=14)[0].T.numpy()
    row, column = tile.coordinates.T
    assert np.array_equal(tile.patches, patches[row * tile.grid[2] + column])


def test_low_detail_takes_fewer_tokens() -> None:
    vision = {"image_size": 1540, "patch_size": 14}
    processor = processor_of("mistral3", vision, {"size": {"longest_edge": 1540}}, config=CONFIG)
    assert prepared(processor, picture(1540, 1540)).n_tokens == 55**2
    assert prepared(processor, picture(1540, 1540), "low").n_tokens == 19**2


def test_images_that_the_tower_cannot_place_are_refused() -> None:
    processor = processor_of("mistral3", VISION, SETTINGS, config=CONFIG)
    with pytest.raises(InvalidRequestError, match="at most 300 times the shorter one") as caught:
        prepared(processor, picture(1, 301))
    assert caught.value.field == WHERE
    small = processor_of("mistral3", {**VISION, "image_size": 140}, SETTINGS, config=CONFIG)
    assert prepared(small, picture(140, 99)).n_tokens == 20
    with pytest.raises(InvalidRequestError, match="into 20 x 12 patches and takes 10 along a side"):
        prepared(small, picture(160, 280))


ODD_SETTINGS = [
    ({**VISION, "patch_size": None}, SETTINGS, PROCESSOR, "patch_size is 14; expected 16"),
    ({**VISION, "image_size": 27}, SETTINGS, PROCESSOR, "image_size is 27"),
    (VISION, {"size": {"longest_edge": 0}}, PROCESSOR, "longest_edge is 0"),
    (VISION, {"size": {"longest_edge": 2.5}}, PROCESSOR, "longest_edge is 2.5"),
    (VISION, SETTINGS, {"patch_size": 16}, "patch_size is 16; expected 14"),
    (VISION, SETTINGS, {"spatial_merge_size": 1}, "spatial_merge_size is 1; expected 2"),
    (VISION, SETTINGS, {"image_break_token": 5}, "image_break_token is 5"),
]


@pytest.mark.parametrize(("vision", "settings", "processor", "expected"), ODD_SETTINGS, ids=str)
def test_odd_settings(vision: Any, settings: Any, processor: Any, expected: str) -> None:
    with pytest.raises(ModelFormatError, match=expected):
        processor_of("mistral3", vision, settings, config=CONFIG, processor=processor)
