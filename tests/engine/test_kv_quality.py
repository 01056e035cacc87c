"""Quality of the KV types: no more error than their rounding causes in transformers.

The oracle is transformers in f32 with a cache that rounds its content to `kv_dtype`. The engine,
with f32 weights, must be much nearer to it than rounding takes it from the exact logits: the rest
is the order of sums, and the few numbers that it moves to the next value of their type.
"""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers.cache_utils import DynamicCache

from pybatcher.engine import Engine
from pybatcher.testing.checkpoints import make_checkpoint

Floats = NDArray[np.float32]

N_PROMPT = 280  # past one segment of attention (256)


def rounded(x: torch.Tensor, kv_dtype: str) -> torch.Tensor:
    """Return keys or values, (..., head_dim), rounded to the type."""
    if kv_dtype == "bf16":
        return x.bfloat16().float()
    if kv_dtype == "f16":
        return x.clamp(-65504, 65504).half().float()
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round() * scale


class RoundingCache(DynamicCache):  # type: ignore[misc]
    def __init__(self, kv_dtype: str) -> None:
        super().__init__()
        self.kv_dtype = kv_dtype

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kw: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = rounded(key_states, self.kv_dtype), rounded(value_states, self.kv_dtype)
        kept: tuple[torch.Tensor, torch.Tensor] = super().update(
            keys, values, layer_idx, *args, **kw
        )
        return kept


def distance(logits: Floats, expected: Floats) -> float:
    """Return the root mean square over the rows, relative to the norm of the expected ones."""
    apart = np.linalg.norm(logits - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return float(np.sqrt((apart**2).mean()))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("kv_dtype", ["bf16", "f16", "int8"])
def test_rounding_and_nothing_else(
    tmp_path: Path, architecture: str, kv_dtype: str, seed: int
) -> None:
    import transformers

    make_checkpoint(tmp_path, architecture, seed=seed, tokenizer=False, num_hidden_layers=2)
    transformers.utils.logging.disable_progress_bar()
    module = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float32
    )
    prompt = np.random.default_rng(seed).integers(0, module.config.vocab_size, N_PROMPT).tolist()
    with torch.no_grad():
        exact: Floats = module(torch.tensor([prompt])).logits[0].numpy()
        cache = RoundingCache(kv_dtype)
        # Its name before transformers 5.24 was another.
        name = "cache" if "cache" in signature(module.forward).parameters else "past_key_values"
        oracle: Floats = module(torch.tensor([prompt]), **{name: cache}).logits[0].numpy()
    engine = Engine.load(tmp_path, kv_dtype=kv_dtype, n_ctx=512, n_threads=1)
    seq_id = engine.seq_new()
    logits = np.stack([engine.prefill_chunk(seq_id, [token], logits=True) for token in prompt])
    engine.close()

    cost = distance(oracle, exact)
    assert distance(logits, oracle) < 0.25 * cost
    assert distance(logits, exact) > 0.75 * cost  # KV was kept in that type
