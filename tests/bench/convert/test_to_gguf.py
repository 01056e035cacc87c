"""GGUF files for rivals hold the model of the checkpoint: of every shape that is compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bench.convert.make_checkpoint import write_checkpoint
from bench.convert.shapes import SHAPES
from bench.convert.to_gguf import to_gguf
from pybatcher.engine import Engine

SMALL = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
}


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_file_has_the_logits_of_the_checkpoint(shape: str, tmp_path: Path) -> None:
    full = SHAPES[shape]
    small = full | {name: value for name, value in SMALL.items() if name in full}
    if "layer_types" in full:
        small["layer_types"] = full["layer_types"][:4]
    write_checkpoint(tmp_path, small)
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 4
    logits = []
    for path in (tmp_path, to_gguf(tmp_path)):
        engine = Engine.load(path, dtype="f32", n_ctx=256, n_threads=1)
        sequence = engine.seq_new()
        logits.append(engine.prefill_chunk(sequence, list(range(40)), logits=True))
    assert np.abs(logits[0] - logits[1]).max() <= 1e-4 * np.abs(logits[0]).max()
