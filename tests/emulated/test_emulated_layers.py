"""Layers of unlike shapes on an emulated GPU: the heads of Gemma 4 E2B, E4B and 31B."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_engine import VOCAB, Floats, load_engine, tokens_of

from pybatcher.engine import Engine
from pybatcher.testing.checkpoints import make_checkpoint

CLOSE = 1e-4
N_PROMPT = 32  # more than a window
_LAYERS = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 24,
}
_WITH_INPUTS = {
    **_LAYERS,
    "num_attention_heads": 8,
    "num_kv_shared_layers": 2,
    "attention_k_eq_v": False,
    "hidden_size_per_layer_input": 16,
}
# Heads, what is shared and what layers have as those models have it; all else is small.
SHAPES: dict[str, dict[str, Any]] = {
    "e2b": {
        **_WITH_INPUTS,
        "num_key_value_heads": 1,
        "num_global_key_value_heads": 1,
        "use_double_wide_mlp": True,
    },
    "e4b": {
        **_WITH_INPUTS,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 2,
        "use_double_wide_mlp": False,
    },
    "31b": {  # nothing is shared: two layers are enough
        **_LAYERS,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "num_kv_shared_layers": 0,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
    },
}


def rows_of(engine: Engine, tokens: list[int], chunk: int, name: str) -> dict[int, Floats]:
    """Logits at the ends of chunks, by position: (vocab)."""
    seq_id = engine.seq_new(name)
    return {
        min(begin + chunk, len(tokens)) - 1: engine.prefill_chunk(
            seq_id, tokens[begin : begin + chunk], logits=True
        )
        for begin in range(0, len(tokens), chunk)
    }


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", SHAPES)
def test_transformers_says_the_same(name: str, tmp_path: Path) -> None:
    import torch
    import transformers

    path = make_checkpoint(tmp_path, "gemma4", tokenizer=False, vocab_size=VOCAB, **SHAPES[name])
    module = transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32
    )
    tokens = tokens_of(N_PROMPT, 1)
    with torch.no_grad():
        expected: Floats = module(torch.tensor([tokens])).logits[0].float().numpy()
    engine = load_engine(path, dtype="f32", kv_dtype="f32", n_ctx=256)
    for chunk in (13, N_PROMPT):
        for position, row in rows_of(engine, tokens, chunk, str(chunk)).items():
            error = np.linalg.norm(row - expected[position])
            assert error < CLOSE * np.linalg.norm(expected[position]), f"chunks of {chunk}"
    engine.check_integrity()
    engine.close()


@pytest.mark.parametrize("formats", [("f32", "f32"), ("bf16", "bf16"), ("int8", "int8")])
@pytest.mark.parametrize("name", SHAPES)
def test_bits_do_not_depend_on_chunks_and_neighbours(
    name: str, formats: tuple[str, str], tmp_path: Path
) -> None:
    path = make_checkpoint(tmp_path, "gemma4", tokenizer=False, vocab_size=VOCAB, **SHAPES[name])
    dtype, kv_dtype = formats
    tokens = tokens_of(N_PROMPT, 2)
    engine = load_engine(path, dtype=dtype, kv_dtype=kv_dtype, n_ctx=256)
    whole = rows_of(engine, tokens, N_PROMPT, "whole")
    for chunk in (1, 7):
        rows = rows_of(engine, tokens, chunk, str(chunk))
        assert all((rows[position] == row).all() for position, row in whole.items())
    seq_ids = [engine.seq_new(str(i)) for i in range(3)]
    for i, seq_id in enumerate(seq_ids):
        engine.prefill_chunk(seq_id, tokens[: N_PROMPT - 1 - 9 * i])
    _, together = engine.decode_batch(seq_ids, [tokens[-1]] * 3, logits=True)
    assert (together[0] == whole[N_PROMPT - 1]).all()
    engine.close()
