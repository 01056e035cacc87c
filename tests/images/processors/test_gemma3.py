"""The processor of Gemma 3 against transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from image_files import SIZES, picture
from processors import only_tile, prepared, processor_of

from pybatcher.errors import ModelFormatError

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from transformers.models.gemma3.image_processing_pil_gemma3 import (  # noqa: E402
    Gemma3ImageProcessorPil,
)
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor  # noqa: E402

VISION = {"image_size": 112, "patch_size": 14}
SETTINGS = {
    "size": {"height": 112, "width": 112},
    **{"do_pan_and_scan": None, "pan_and_scan_min_crop_size": None},
}
CONFIG = {"mm_tokens_per_image": 16}


@pytest.mark.parametrize("mode", ["RGB", "1", "L", "LA", "P", "RGBA", "CMYK", "I", "I;16"])
def test_patches_are_those_of_transformers(mode: str) -> None:
    processor = processor_of("gemma3", VISION, SETTINGS, config=CONFIG)
    for height, width in SIZES:
        image = picture(height, width, mode)
        tile = only_tile(prepared(processor, image))
        expected = Gemma3ImageProcessorPil(**SETTINGS)([image], return_tensors="pt")
        patches = torch.nn.functional.unfold(expected["pixel_values"], 14, stride=14)[0].T.numpy()
        row, column = tile.coordinates.T
        assert np.array_equal(tile.patches, patches[row * 8 + column])
        assert np.array_equal(tile.table_index[:, 0], row * 8 + column)
        assert tile.table_index.dtype == np.int32
        groups = (row // 2) * 4 + column // 2
        assert np.array_equal(groups, np.arange(64) // 4)


def test_the_text_is_that_of_transformers() -> None:
    tokenizer = SimpleNamespace(
        boi_token="<start_of_image>",
        boi_token_id=1,
        image_token="<image_soft_token>",
        eoi_token="<end_of_image>",
    )
    oracle = SimpleNamespace()
    with pytest.raises(TypeError, match="super"):  # the text is made before the parent's part
        Gemma3Processor.__init__(oracle, None, tokenizer, image_seq_length=16)
    found = prepared(processor_of("gemma3", VISION, SETTINGS, config=CONFIG), picture(9, 9))
    assert found.text == oracle.full_image_sequence
    assert found.n_tokens == 16


def test_the_placeholder_is_the_first_token_of_the_text() -> None:
    processor = processor_of("gemma3", VISION, SETTINGS, config=CONFIG)
    assert (processor.placeholder, processor.image_token) == (
        "<start_of_image>",
        "<image_soft_token>",
    )


ODD_SETTINGS = [
    ({**VISION, "patch_size": 113}, SETTINGS, CONFIG, "patch_size is 113"),
    (VISION, {"size": {"height": 100, "width": 112}}, CONFIG, "height is 100; expected 112"),
    (VISION, {"size": {"height": 112, "width": "a"}}, CONFIG, "width is 'a'"),
    (VISION, SETTINGS, {"mm_tokens_per_image": 15}, "15; expected a square number"),
    (VISION, SETTINGS, {"mm_tokens_per_image": 9}, "9; expected the tokens of 8 x 8 patches"),
    (VISION, SETTINGS, {"mm_tokens_per_image": 256}, "256; expected the tokens of 8 x 8"),
]


@pytest.mark.parametrize(("vision", "settings", "config", "expected"), ODD_SETTINGS, ids=str)
def test_odd_settings(vision: Any, settings: Any, config: Any, expected: str) -> None:
    with pytest.raises(ModelFormatError, match=expected):
        processor_of("gemma3", vision, settings, config=config)


def test_the_number_of_tokens_must_be_that_of_the_tower() -> None:
    with pytest.raises(ModelFormatError, match="image_seq_length is 256; expected 16"):
        processor_of("gemma3", VISION, SETTINGS, config=CONFIG, processor={"image_seq_length": 256})
