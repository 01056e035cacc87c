"""Measure the loss of each dtype that is quantised during loading, on a small random Llama.

    .venv/bin/python -m bench.quantising

The figures are those of bench.quality: the divergence, in nats, of the next token's distribution
    from the distribution with f32 weights. The model consists of whole super-blocks, which the
    shipped model does not. Random weights lose more than trained ones, so that only the ratios are
    meaningful.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bench.engine.quality import figures
from pybatcher.engine import Engine
from pybatcher.testing.checkpoints import make_checkpoint

SHAPE: dict[str, Any] = {
    "num_hidden_layers": 8,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "tie_word_embeddings": True,
    "initializer_range": 0.05,
}
FIRST_TOKEN, VOCABULARY = 3, 384


def logits_of(path: Path, dtype: str, sequences: list[list[int]]) -> tuple[np.ndarray, float]:
    """Return the logits of all positions, float32 (positions, vocab), and the weights' megabytes.

    KV is f32, so that only the weights differ.
    """
    engine = Engine.load(path, dtype=dtype, kv_dtype="f32", n_ctx=1024, weights_cache="off")
    rows = []
    for tokens in sequences:
        seq_id = engine.seq_new()
        rows += [engine.prefill_chunk(seq_id, [token], logits=True) for token in tokens]
        engine.seq_remove(seq_id)
    megabytes = int(engine.description()["weight_bytes"]) / 1e6
    engine.close()
    return np.array(rows), megabytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtypes", default="int8,q6_k,q5_k_m,q4_k_m,int4")
    parser.add_argument("--model", type=Path, help="a directory instead of the random model")
    a = parser.parse_args()
    rng = np.random.default_rng(0)
    sequences = [rng.integers(FIRST_TOKEN, VOCABULARY, 48).tolist() for _ in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        path = a.model or make_checkpoint(Path(folder) / "llama", "llama", **SHAPE)
        reference, _ = logits_of(path, "f32", sequences)
        for dtype in a.dtypes.split(","):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings about rounded matrices
                logits, megabytes = logits_of(path, dtype, sequences)
            found = figures(reference, logits)
            print(f"{dtype:>8} {megabytes:7.2f} MB  KL mean {found['mean']:.2e}")


if __name__ == "__main__":
    main()
