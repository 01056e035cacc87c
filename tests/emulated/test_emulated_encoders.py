"""Encoders on an emulated GPU: as transformers has them, and the same bits alone and in a crowd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated_engine import Floats, load_engine
from encoder_shapes import encoder_shape

from pybatcher import ConfigError
from pybatcher.engine import Engine
from pybatcher.scheduling.plan import Pooling, StepEntry, StepPlan
from pybatcher.testing.checkpoints import ENCODERS, make_checkpoint, make_module

CLOSE = 1e-4
LENGTHS = (1, 2, 33, 270, 7)  # shorter and longer than a segment of attention (256)
POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "last")
OPTIONS: dict[str, Any] = {"n_parallel": 8, "n_ubatch": 320, "kv_dtype": "f32"}
DTYPES = {"f32": "f32", "bf16": "bf16", "int8": "f16", "int4": "int8"}  # of weights: of KV


def texts(vocab_size: int) -> list[tuple[int, ...]]:
    """Token ids of texts of LENGTHS, none of them one that pads."""
    return [tuple(10 + (i * 37 + n) % (vocab_size - 10) for i in range(n)) for n in LENGTHS]


def embed_together(
    engine: Engine, asked: list[tuple[int, ...]], pooling: Pooling = "mean"
) -> list[Floats]:
    """Each text's vector, (hidden) f32, of one step; the sequences are gone afterwards."""
    seq_ids = [engine.seq_new() for _ in asked]
    entries = tuple(
        StepEntry(seq_id, text, False, pooling=pooling)
        for seq_id, text in zip(seq_ids, asked, strict=True)
    )
    result = engine.step(StepPlan(entries, 0, sum(map(len, asked))))
    assert not result.failed
    for seq_id in seq_ids:
        engine.seq_remove(seq_id)
    return [np.array(result.embeddings[seq_id], np.float32) for seq_id in seq_ids]


def head_dim(shape: dict[str, Any]) -> int:
    size: int = shape.get("head_dim", shape["hidden_size"] // shape["num_attention_heads"])
    return size


def even_shapes(family: str) -> list[dict[str, Any]]:
    """The default shape and a random one, of heads that GPUs have attention for."""
    shapes = (encoder_shape(family, seed) for seed in range(99))
    return [{}, next(shape for shape in shapes if head_dim(shape) % 2 == 0)]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("family", ENCODERS)
def test_vectors_are_those_of_transformers(family: str, which: int, tmp_path: Path) -> None:
    import torch

    shape = even_shapes(family)[which]
    module = make_module(family, attn_implementation="eager", **shape)
    make_checkpoint(tmp_path, family, tokenizer=False, **shape)
    engine = load_engine(tmp_path, dtype="f32", **OPTIONS)
    asked = texts(module.config.vocab_size)
    with torch.no_grad():
        expected: list[Floats] = [
            module(torch.tensor([text])).last_hidden_state[0].numpy() for text in asked
        ]
    for pooling in POOLINGS:
        for found, rows in zip(embed_together(engine, asked, pooling), expected, strict=True):
            one = {"mean": rows.mean(0), "cls": rows[0], "last": rows[-1]}[pooling]
            assert np.linalg.norm(found - one) < CLOSE * np.linalg.norm(rows, axis=1).mean()
    engine.check_integrity()
    engine.close()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["bert", "modernbert", "embedding_gemma"])
def test_bits_are_the_same_alone_and_in_a_crowd(family: str, dtype: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, family, tokenizer=False, num_hidden_layers=2)
    asked = texts(384)
    options = {**OPTIONS, "kv_dtype": DTYPES[dtype]}
    engine = load_engine(tmp_path, dtype=dtype, **options)
    alone = [embed_together(engine, [text])[0].tobytes() for text in asked]
    assert [found.tobytes() for found in embed_together(engine, asked)] == alone
    engine.close()
    engine = load_engine(tmp_path, dtype=dtype, **{**options, "n_ubatch": 271})
    backwards = embed_together(engine, asked[::-1])
    assert [found.tobytes() for found in reversed(backwards)] == alone
    assert engine.seq_match(engine.seq_new(), asked[-1]) == 0, "a prefix has been kept"
    engine.close()


def test_heads_of_an_odd_size_are_refused_by_name(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "bert", tokenizer=False, hidden_size=75)
    said = r"config\.head_dim is 15 \(bert\); device 'cuda.*' takes even sizes .*device='cpu'"
    with pytest.raises(ConfigError, match=said):
        load_engine(tmp_path)
