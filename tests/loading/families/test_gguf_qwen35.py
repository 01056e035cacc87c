"""Qwen 3.5 in GGUF files: the same model as its checkpoint, and files that are wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from engine_helpers import some_logits as logits
from gguf_files import write_gguf
from numpy.typing import NDArray

from pybatcher.errors import ModelFormatError
from pybatcher.loading import open_model
from pybatcher.loading.checkpoints.tensors import Tensor
from pybatcher.loading.families.recurrent.qwen3_5 import GGUF_NAMES as NAMES
from pybatcher.loading.parts.gguf_experts import SHARED_EXPERT_NAMES
from pybatcher.loading.parts.gguf_names import gguf_name
from pybatcher.testing.checkpoints import make_checkpoint

ONE_WIDTH = {"linear_key_head_dim": 16, "linear_value_head_dim": 16}  # as llama.cpp has it
PREFIX = "qwen35."


def checkpoint(path: Path, **changes: Any) -> Path:
    return make_checkpoint(path, "qwen3_5", **ONE_WIDTH | changes)


def numbers(tensor: Tensor) -> NDArray[np.float32]:
    if tensor.dtype == "bf16":
        return (tensor.array.astype(np.uint32) << 16).view(np.float32)
    return tensor.array.astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
def test_heads_of_their_own_keys(dtype: str, tied: bool, tmp_path: Path) -> None:
    """All numbers are the checkpoint's but decays, which are powers that torch computes."""
    directory = checkpoint(
        tmp_path / "hf", dtype=dtype, linear_num_value_heads=2, tie_word_embeddings=tied
    )
    path = write_gguf(directory, tmp_path / "model.gguf")
    known, loaded = open_model(directory), open_model(path)
    assert known.config.gated_delta_net is not None
    assert replace(loaded.config, norm_eps=known.config.norm_eps) == replace(
        known.config, gated_delta_net=replace(known.config.gated_delta_net, in_turn=True)
    )
    assert loaded.tensors.keys() == known.tensors.keys()
    for name, expected in known.tensors.items():
        made = numbers(loaded.tensors[name])
        tolerance = 1e-6 if name.endswith("decay") else 0.0
        np.testing.assert_allclose(made, numbers(expected), rtol=tolerance, err_msg=name)
    np.testing.assert_allclose(logits(path), logits(directory), rtol=0, atol=1e-4)


def test_heads_that_share_keys(tmp_path: Path) -> None:
    """Sums over value heads are taken in another order."""
    directory = checkpoint(tmp_path / "hf")
    path = write_gguf(directory, tmp_path / "model.gguf")
    np.testing.assert_allclose(logits(path), logits(directory), rtol=0, atol=1e-4)


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path / "hf")
    plain = write_gguf(directory, tmp_path / "plain.gguf")
    keys: dict[str, Any] = {
        PREFIX + "block_count": 6,
        PREFIX + "nextn_predict_layers": 1,
        PREFIX + "attention.recurrent_layers": [True, False, True, True, False, False],
    }
    path = write_gguf(directory, tmp_path / "model.gguf", keys=keys)
    assert open_model(path).config.n_layers == 5
    np.testing.assert_array_equal(logits(path), logits(plain))


def test_every_fourth_layer_has_attention_where_the_file_lists_none(tmp_path: Path) -> None:
    kinds = ["linear_attention", "linear_attention", "full_attention"]
    directory = checkpoint(tmp_path / "hf", num_hidden_layers=3, layer_types=kinds)
    keys = {PREFIX + "attention.recurrent_layers": None, PREFIX + "full_attention_interval": 3}
    path = write_gguf(directory, tmp_path / "model.gguf", keys=keys)
    gated_delta_net = open_model(path).config.gated_delta_net
    assert gated_delta_net is not None
    assert gated_delta_net.in_layer == (True, True, False)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("ssm.conv_kernel", 0, "from 1 to 64"),
        ("ssm.state_size", 4096, "from 1 to"),
        ("ssm.time_step_rank", 5, "a multiple of 2 groups"),
        ("ssm.inner_size", 95, "96"),
        ("ssm.time_step_rank", None, "missing"),
        ("nextn_predict_layers", 5, "fewer than the 5 blocks"),
        ("attention.recurrent_layers", [True] * 5, "one or more layers have attention"),
        ("attention.recurrent_layers", [True, False], "each of 5 layers"),
        ("full_attention_interval", 9, "one or more layers have attention"),
    ],
)
def test_keys_that_are_wrong(key: str, value: Any, expected: str, tmp_path: Path) -> None:
    directory = checkpoint(tmp_path / "hf")
    keys = {PREFIX + key: value}
    if key == "full_attention_interval":
        keys[PREFIX + "attention.recurrent_layers"] = None
    path = write_gguf(directory, tmp_path / "model.gguf", keys=keys)
    with pytest.raises(ModelFormatError, match=expected) as raised:
        open_model(path)
    assert key in str(raised.value)


def test_names() -> None:
    assert gguf_name("token_embedding", NAMES) == "token_embd.weight"
    assert gguf_name("layers.3.gated_delta_net.decay", NAMES) == "blk.3.ssm_a"
    assert gguf_name("layers.12.attn_gate.weight", NAMES) == "blk.12.attn_q.weight"
    shared = gguf_name("layers.1.up.weight", NAMES | SHARED_EXPERT_NAMES)
    assert shared == "blk.1.ffn_up_shexp.weight"
    known = {name.format(bid=0) for name in gguf.TENSOR_NAMES.values()}
    for part in (
        "gated_delta_net.qkv",
        "gated_delta_net.z",
        "gated_delta_net.b",
        "gated_delta_net.a",
        "gated_delta_net.o",
        "gated_delta_net.norm",
    ):
        assert gguf_name(f"layers.0.{part}.weight", NAMES).removesuffix(".weight") in known


@pytest.mark.parametrize("tied", [False, True])
def test_mixtures_with_a_shared_expert(tied: bool, tmp_path: Path) -> None:
    directory = make_checkpoint(
        tmp_path / "hf", "qwen3_5_moe", **ONE_WIDTH, tie_word_embeddings=tied
    )
    path = write_gguf(directory, tmp_path / "model.gguf")
    known, loaded = open_model(directory).config, open_model(path).config
    assert loaded.moe == known.moe
    assert loaded.intermediate_size == known.intermediate_size == 56
    np.testing.assert_allclose(logits(path), logits(directory), rtol=0, atol=1e-4)
