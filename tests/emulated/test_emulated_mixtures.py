"""Mixtures of experts in blocks on an emulated GPU: the bits of the same numbers as bf16.

Products of all weights but f32 are those of bf16 numbers, so that experts in blocks, with all else
in bf16, have exactly the logits of the same experts in bf16.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_models import in_blocks
from emulated_engine import BLOCK, VOCAB, Floats, tokens_of

from pybatcher.engine import Engine
from pybatcher.loading import LoadedModel, open_model
from pybatcher.params.config import EngineConfig
from pybatcher.testing.checkpoints import make_checkpoint

SHAPE: dict[str, Any] = {"hidden_size": 256, "num_hidden_layers": 2}  # whole super-blocks
EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"moe_intermediate_size": 256, "mlp_only_layers": []},
    "gpt_oss": {"intermediate_size": 256},  # whose experts have biases
}
CASES = [
    *(("qwen3_moe", dtype) for dtype in ("int8", "int4", "int4_zp", "q4_k", "q5_k", "q6_k")),
    ("gpt_oss", "mxfp4"),
]
PROMPT = tokens_of(61, 1)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    architecture, dtype = request.param
    path: Path = make_checkpoint(
        tmp_path_factory.mktemp("model"),
        architecture,
        tokenizer=False,
        vocab_size=VOCAB,
        **{**SHAPE, **EXPERTS[architecture]},
    )
    return in_blocks(open_model(path), lambda name: dtype if ".experts." in name else "bf16")


def engine_of(model: LoadedModel, **options: Any) -> Engine:
    sizes: dict[str, Any] = {"n_ctx": 512, "n_parallel": 4, "n_threads": 1, "block_size": BLOCK}
    config = EngineConfig(device="cuda", kv_dtype="f32", **{**sizes, **options})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*matrices are rounded")
        return Engine.from_loaded(model, config)


def logits_of(engine: Engine, *chunks: int) -> Floats:
    """After PROMPT, computed in chunks, and after each of two tokens more, decoded in company."""
    seq_id = engine.seq_new(str(chunks))  # a name space of its own: nothing is shared
    other = engine.seq_new("other")
    engine.prefill_chunk(other, tokens_of(5, 2))
    first = 0
    for size in chunks:
        row = engine.prefill_chunk(seq_id, PROMPT[first : first + size], logits=True)
        first += size
    assert first == len(PROMPT)
    rows = [row]
    for token in tokens_of(2, 3):
        _, together = engine.decode_batch([other, seq_id], [7, token], logits=True)
        rows.append(together[1])
    engine.seq_remove(seq_id)
    engine.seq_remove(other)
    return np.array(rows)


def test_blocks_have_the_bits_of_their_numbers_in_any_chunks(model: LoadedModel) -> None:
    in_bf16 = engine_of(model, dtype="bf16")
    assert in_bf16.description()["dtypes"] == "bf16, f32"  # f32: routers
    expected = logits_of(in_bf16, len(PROMPT))
    in_bf16.close()
    engine = engine_of(model)
    assert len(str(engine.description()["dtypes"]).split(", ")) == 3
    for chunks in ((len(PROMPT),), (17, 1, 43)):
        np.testing.assert_array_equal(logits_of(engine, *chunks), expected)
    engine.close()
