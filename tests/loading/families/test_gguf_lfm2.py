"""LFM2 in GGUF files: the same model as its checkpoint, and files that are wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from engine_helpers import some_logits as logits
from gguf_files import write_gguf

from pybatcher.errors import ModelFormatError
from pybatcher.loading import open_model
from pybatcher.loading.families.recurrent.lfm2 import GGUF_NAMES as NAMES
from pybatcher.loading.parts.gguf_names import gguf_name
from pybatcher.testing.checkpoints import make_checkpoint


@pytest.mark.parametrize("architecture", ["lfm2", "lfm2_moe"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_same_model(architecture: str, tied: bool, tmp_path: Path) -> None:
    directory = make_checkpoint(
        tmp_path / "hf", architecture, tie_word_embeddings=tied, rope_theta=1e4
    )
    path = write_gguf(directory, tmp_path / "model.gguf")
    known, loaded = open_model(directory), open_model(path)
    expected = replace(known.config, norm_eps=loaded.config.norm_eps)
    if known.config.moe is not None and loaded.config.moe is not None:
        assert loaded.config.moe.weight_scale == pytest.approx(known.config.moe.weight_scale)
        expected = replace(expected, moe=loaded.config.moe)
        moe = replace(loaded.config.moe, weight_scale=known.config.moe.weight_scale)
        assert moe == known.config.moe
    assert loaded.config == expected
    assert loaded.tensors.keys() == known.tensors.keys()
    np.testing.assert_allclose(logits(path), logits(directory), rtol=0, atol=1e-5)


def test_heads_that_are_one_number_are_of_layers_with_attention(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "hf", "lfm2", layer_types=["full_attention"] * 4)
    path = write_gguf(directory, tmp_path / "model.gguf", keys={"lfm2.attention.head_count_kv": 2})
    config = open_model(path).config
    assert config.short_conv is None
    np.testing.assert_allclose(logits(path), logits(directory), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("attention.head_count_kv", [0, 2, 0], "for each block"),
        ("attention.head_count_kv", [0, 2, -1, 0], "from 0 to"),
        ("attention.head_count_kv", [0, 2, 1, 0], "0 or one and the same number"),
        ("attention.head_count_kv", [0] * 4, "0 or one and the same number"),
        ("attention.head_count_kv", [0.0, 2.0, 0.0, 0.0], "for each block"),
        ("attention.head_count_kv", 0, "from 1 to"),
        ("shortconv.l_cache", None, "missing"),
        ("shortconv.l_cache", 1, "from 2 to 64"),
    ],
)
def test_keys_that_are_wrong(key: str, value: Any, expected: str, tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "hf", "lfm2")
    path = write_gguf(directory, tmp_path / "model.gguf", keys={f"lfm2.{key}": value})
    with pytest.raises(ModelFormatError, match=expected) as raised:
        open_model(path)
    assert key in str(raised.value)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("expert_gating_func", 1, "2"),
        ("expert_weights_scale", -1.0, "from 0 to"),
        ("expert_weights_scale", 1e-30, "from 1e-06 to"),
        ("leading_dense_block_count", -1, "from 0 to"),
    ],
)
def test_keys_of_experts_that_are_wrong(
    key: str, value: Any, expected: str, tmp_path: Path
) -> None:
    directory = make_checkpoint(tmp_path / "hf", "lfm2_moe")
    path = write_gguf(directory, tmp_path / "model.gguf", keys={f"lfm2moe.{key}": value})
    with pytest.raises(ModelFormatError, match=expected) as raised:
        open_model(path)
    assert key in str(raised.value)


def test_names() -> None:
    assert gguf_name("final_norm.weight", NAMES) == "token_embd_norm.weight"
    assert gguf_name("layers.3.short_conv.convolution", NAMES) == "blk.3.shortconv.conv.weight"
    known = {name.format(bid=0) for name in gguf.TENSOR_NAMES.values()}
    for part in ("short_conv.in", "short_conv.o", "q_norm", "mlp_norm"):
        assert gguf_name(f"layers.0.{part}.weight", NAMES).removesuffix(".weight") in known
