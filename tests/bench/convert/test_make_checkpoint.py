from __future__ import annotations

from pathlib import Path

import pytest

from bench.convert import make_checkpoint
from bench.convert.shapes import GPT2, SHAPES
from pybatcher.loading import open_model

SMALL = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_checkpoint_of_each_shape_opens(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_checkpoint, "CHECKPOINTS", tmp_path)
    kinds = SHAPES[shape].get("layer_types")
    first = 0 if kinds is None else kinds.index("full_attention") - 1
    small = SMALL if kinds is None else SMALL | {"layer_types": kinds[first : first + 2]}
    monkeypatch.setitem(SHAPES, shape, SHAPES[shape] | small)
    monkeypatch.setattr(make_checkpoint, "CHUNK", 1000)
    path = make_checkpoint.make_checkpoint(shape)
    model = open_model(path)
    assert model.dtype == "bf16"
    assert model.config.n_layers == 2
    assert model.tensors["layers.1.k.weight"].array.shape == (16, 48)
    assert ("layers.1.q.bias" in model.tensors) == (shape == "qwen2.5-0.5b")
    before = (path / "model.safetensors").stat().st_mtime_ns
    assert make_checkpoint.make_checkpoint(shape) == path
    assert (path / "model.safetensors").stat().st_mtime_ns == before


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    config = SHAPES["smollm2-135m"] | SMALL
    files = [tmp_path / name for name in ("a", "b", "c")]
    for file, seed in zip(files, (1, 1, 2), strict=True):
        make_checkpoint.write_safetensors(file, config, seed)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].read_bytes() != files[2].read_bytes()


def test_a_checkpoint_of_gpt2_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_checkpoint, "CHECKPOINTS", tmp_path)
    small = {"vocab_size": 300, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64}
    for name, value in small.items():
        monkeypatch.setitem(GPT2, name, value)
    model = open_model(make_checkpoint.make_checkpoint("gpt2"))
    assert (model.config.n_layers, model.config.max_position_embeddings) == (2, 64)
    assert model.tensors["layers.1.up.weight"].array.shape == (192, 48)
    assert make_checkpoint.is_norm_weight("transformer.h.0.ln_2.weight")
    assert make_checkpoint.is_norm_weight("model.layers.0.input_layernorm.weight")
    assert not make_checkpoint.is_norm_weight("transformer.h.0.ln_2.bias")
    assert not make_checkpoint.is_norm_weight("transformer.h.0.mlp.c_fc.weight")
