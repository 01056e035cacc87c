from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.images.settings import CLIP, HALF, ProcessorFiles, read_levels
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


def test_fused_levels_are_those_of_rescaled_means() -> None:
    torch = pytest.importorskip("torch")
    mean, std = (torch.tensor(values) * 255.0 for values in CLIP)
    expected = (torch.arange(256).float() - mean[:, None]) / std[:, None]
    found = read_levels(Fields({}, "file"), CLIP, fused=True)
    assert np.array_equal(found, expected.numpy())
    assert not np.array_equal(found, read_levels(Fields({}, "file"), CLIP))
    plain = read_levels(Fields({"do_normalize": False}, "file"), CLIP, fused=True)
    assert plain[0, 255] == 1


def token_of(tokenizer: dict[str, Any]) -> str:
    none = Fields({}, "none")
    files = ProcessorFiles(none, none, none, none, Fields(tokenizer, "tokenizer_config.json"))
    return files.special_token("image_token", "<default>")


def test_a_special_token_is_found_wherever_tokenizers_have_it() -> None:
    assert token_of({}) == token_of({"extra_special_tokens": ["<a>"]}) == "<default>"
    assert token_of({"image_token": "<a>"}) == "<a>"
    assert token_of({"image_token": {"content": "<a>", "special": True}}) == "<a>"
    for group in ("extra_special_tokens", "model_specific_special_tokens"):
        assert token_of({group: {"image_token": "<a>"}}) == "<a>"
        assert token_of({group: {"image_token": {"content": "<a>"}}}) == "<a>"
    with pytest.raises(ModelFormatError, match="image_token is 5; expected a text"):
        token_of({"image_token": 5})
