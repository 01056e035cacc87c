"""The names and keys of mmproj files; `tests/loading/gguf/test_mmproj.py` opens whole files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.tensors import Tensor
from pybatcher.loading.families import read_blueprint, takes_images
from pybatcher.loading.parts.gguf_contents import GgufContents
from pybatcher.loading.parts.gguf_vision import (
    Mmproj,
    joined_frames,
    read_image_settings,
    tower_rules,
)

NAMES = {
    "projector.norm_before": "v.post_ln",
    "projector.linears.0": "mm.0",
    "projector.linears.1": "mm.2",
}


def tensor(name: str, *shape: int, dtype: str = "f32") -> Tensor:
    rng = np.random.default_rng(len(name))
    return Tensor(rng.standard_normal(shape, np.float32), dtype, f"t.gguf: tensor {name!r}")


def mmproj(tensors: dict[str, Tensor] | None = None, **keys: Any) -> Mmproj:
    metadata = {f"clip.vision.{name}": value for name, value in keys.items()}
    text = Fields({"general.architecture": "qwen3vl"}, "model.gguf")
    contents = GgufContents(metadata=text, vocab_size=100)
    return Mmproj(Fields(metadata, "t.gguf"), tensors or {}, contents)


def sources(tensors: dict[str, Tensor]) -> dict[str, tuple[str, tuple[int, ...], Any]]:
    """Return source, shape and rows of each rule of a small tower's first layer, by name."""
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 4}
    vision |= {"out_hidden_size": 32, "num_position_embeddings": 4, "patch_size": 2}
    text = {"model_type": "qwen3_vl_text", "vocab_size": 9, "hidden_size": 32, "head_dim": 16}
    text |= {"intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"rope_scaling": {"mrope_section": [3, 3, 2]}}
    fields = {"model_type": "qwen3_vl", "text_config": {**text, "num_key_value_heads": 2}}
    fields |= {"vision_config": {**vision, "deepstack_visual_indexes": []}}
    fields["architectures"] = ["Qwen3VLForConditionalGeneration"]
    blueprint = read_blueprint(Fields(fields, "config.json"))
    rules = tower_rules(mmproj(tensors), blueprint, NAMES)
    return {rule.name: (rule.source, rule.shape, rule.rows) for rule in rules}


def test_names_of_tensors() -> None:
    found = sources({"v.blk.0.attn_qkv.weight": tensor("x", 48, 16)})
    assert found["tower.patch.bias"][0] == "v.patch_embd.bias"
    assert found["tower.positions.weight"][0] == "v.position_embd.weight"
    assert found["tower.layers.0.attn_norm.bias"][0] == "v.blk.0.ln1.bias"
    assert found["tower.layers.0.o.weight"][0] == "v.blk.0.attn_out.weight"
    assert found["tower.layers.0.up.weight"][:2] == ("v.blk.0.ffn_up.weight", (24, 16))
    assert found["tower.projector.norm_before.weight"][0] == "v.post_ln.weight"
    assert found["tower.projector.linears.1.bias"][0] == "mm.2.bias"
    fused = "v.blk.0.attn_qkv.weight"
    assert found["tower.layers.0.q.weight"] == (fused, (48, 16), (0, 16))
    assert found["tower.layers.0.v.weight"] == (fused, (48, 16), (32, 48))
    assert found["tower.layers.0.k.bias"] == ("v.blk.0.attn_k.bias", (16,), None)


def test_exchanged_matrices_of_an_mlp() -> None:
    up, down = "v.blk.0.ffn_up.weight", "v.blk.0.ffn_down.weight"
    exchanged = sources({up: tensor(up, 16, 24), down: tensor(down, 24, 16)})
    assert exchanged["tower.layers.0.up.weight"] == (down, (24, 16), None)
    assert exchanged["tower.layers.0.down.bias"][0] == "v.blk.0.ffn_up.bias"
    for other in (
        {up: tensor(up, 24, 16), down: tensor(down, 16, 24)},
        {up: tensor(up, 16, 16), down: tensor(down, 16, 16)},
        {up: tensor(up, 16), down: tensor(down, 24, 16)},
        {down: tensor(down, 24, 16)},
    ):
        assert sources(other)["tower.layers.0.up.weight"][0] == up


def test_two_frames_become_one_convolution() -> None:
    first, second = (tensor(f"v.patch_embd.weight{end}", 5, 3, 4, 4) for end in ("", ".1"))
    both = {"v.patch_embd.weight": first, "v.patch_embd.weight.1": second}
    joined = joined_frames(both)
    assert [*joined] == ["v.patch_embd.weight"]
    array = joined["v.patch_embd.weight"].array
    assert array.shape == (5, 3, 2, 4, 4)
    assert np.array_equal(array[:, :, 0], first.array)
    assert np.array_equal(array[:, :, 1], second.array)
    assert len(both) == 2
    alone = {"v.patch_embd.weight": first}
    assert joined_frames(alone) == alone
    half = replace(second, dtype="f16")
    with pytest.raises(ModelFormatError, match=r"weight\.1'.*expected f32 \[5, 3, 4, 4\], as of"):
        joined_frames({**both, "v.patch_embd.weight.1": half})


def test_translated_fields_are_called_by_their_keys() -> None:
    fields = mmproj(block_count=0).translated(
        {"extra": 5}, {"depth": "block_count", "patch_size": "patch_size"}
    )
    assert "patch_size" not in fields
    assert fields.integer("extra", 1, 9) == 5
    changed = fields.with_defaults({"num_heads": 0}).with_values({"extra": 6}).without("extra")
    for asked in (fields, changed):
        with pytest.raises(ModelFormatError, match=r"t\.gguf: clip\.vision\.block_count is 0; exp"):
            asked.integer("depth", 1, 9)
        with pytest.raises(ModelFormatError, match=r"clip\.vision\.patch_size is missing"):
            asked.integer("patch_size", 1, 9)
    with pytest.raises(ModelFormatError, match=r"t\.gguf: num_heads is 0"):
        changed.integer("num_heads", 1, 9)
    nested = Fields({"vision_config": fields}, "config")
    assert nested.child("vision_config") is fields


def test_settings_of_images() -> None:
    halves = np.full(3, 0.5, np.float32)
    found = read_image_settings(mmproj(image_mean=halves, image_std=halves), resample=2)
    assert found.numbers("image_mean", 3, 0, 1) == [0.5] * 3
    assert found.integer("resample", 0, 9) == 2
    for bad in (None, 0.5, "half", halves[:2], halves * np.inf, [0.5] * 3, np.array(["a"] * 3)):
        with pytest.raises(ModelFormatError, match=r"clip\.vision\.image_mean .*; expected three"):
            read_image_settings(mmproj(image_mean=bad, image_std=halves))


def test_architectures_with_towers() -> None:
    assert takes_images("qwen3vl")
    assert takes_images("qwen35moe")
    assert not takes_images("qwen3")
