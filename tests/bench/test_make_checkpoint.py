from __future__ import annotations

from pathlib import Path

import pytest

from bench import make_checkpoint
from bench.shapes import SHAPES
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
    monkeypatch.setitem(SHAPES, shape, SHAPES[shape] | SMALL)
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
