"""Encoders against transformers: random shapes, mixed lengths, the same bits in a crowd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from encoder_shapes import encoder_shape
from engine_helpers import TARGETS
from numpy.typing import NDArray
from random_shapes import random_shape

from pybatcher import InvalidRequestError, ModelFormatError, RequestTooLongError
from pybatcher.engine import Engine
from pybatcher.loading import from_torch, open_model
from pybatcher.params.config import EngineConfig
from pybatcher.scheduling.plan import Pooling, StepEntry, StepPlan
from pybatcher.testing.checkpoints import ENCODERS, make_checkpoint, make_module

Floats = NDArray[np.float32]

CLOSE = 1e-4
LENGTHS = (1, 2, 33, 7, 300, 290, 40)  # shorter and longer than a segment of attention (256)
POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "last")
DTYPES = {"bf16": 0.1, "int8": 0.1, "int4": 0.8}  # error of a whole model, relative
OPTIONS: dict[str, Any] = {"n_ctx": 2048, "n_parallel": 8, "n_ubatch": 512}


def texts(vocab_size: int) -> list[tuple[int, ...]]:
    """Token ids of texts of LENGTHS, none of them one that pads."""
    return [tuple(10 + (i * 37 + n) % (vocab_size - 10) for i in range(n)) for n in LENGTHS]


def entries(asked: list[tuple[int, ...]], pooling: Pooling) -> list[StepEntry]:
    return [StepEntry(i, text, False, pooling=pooling) for i, text in enumerate(asked)]


def embed_together(
    engine: Engine, asked: list[tuple[int, ...]], pooling: Pooling = "mean"
) -> list[Floats]:
    """Each text's vector, (hidden) f32, of one step; the sequences are gone afterwards."""
    for _ in asked:
        engine.seq_new()
    result = engine.step(StepPlan(tuple(entries(asked, pooling)), 0, sum(map(len, asked))))
    assert not result.failed
    for seq_id in range(len(asked)):
        engine.seq_remove(seq_id)
    return [np.array(result.embeddings[i], np.float32) for i in range(len(asked))]


def states(module: Any, text: tuple[int, ...]) -> Floats:
    with torch.no_grad():
        found: Floats = module(torch.tensor([text])).last_hidden_state[0].numpy()
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("family", ENCODERS)
def test_vectors_are_those_of_transformers(
    family: str, seed: int, tmp_path: Path, one_thread: None
) -> None:
    shape = encoder_shape(family, seed)
    module = make_module(family, seed=seed, attn_implementation="eager", **shape)
    make_checkpoint(tmp_path, family, seed=seed, tokenizer=False, **shape)
    engine = Engine.load(tmp_path, dtype="f32", **OPTIONS)
    asked = texts(module.config.vocab_size)
    expected = [states(module, text) for text in asked]
    for pooling in POOLINGS:
        for found, rows in zip(embed_together(engine, asked, pooling), expected, strict=True):
            one = {"mean": rows.mean(0), "cls": rows[0], "last": rows[-1]}[pooling]
            assert np.linalg.norm(found - one) < CLOSE * np.linalg.norm(rows, axis=1).mean()
    engine.check_integrity()
    engine.close()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", *DTYPES])
@pytest.mark.parametrize("family", ["bert", "modernbert", "embedding_gemma"])
def test_bits_are_the_same_alone_and_in_a_crowd(
    family: str, dtype: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYBATCHER_CPU_TARGET", target)
    make_checkpoint(tmp_path, family, tokenizer=False)
    asked = texts(384)
    alone: list[bytes] = []
    crowds: list[list[bytes]] = []
    for n_ubatch, n_threads in ((300, 1), (512, 2), (1000, 3)):
        engine = Engine.load(
            tmp_path, **{**OPTIONS, "n_ubatch": n_ubatch}, dtype=dtype, n_threads=n_threads
        )
        if not alone:
            alone = [embed_together(engine, [text])[0].tobytes() for text in asked]
        crowds.append([found.tobytes() for found in embed_together(engine, asked)])
        backwards = embed_together(engine, asked[::-1])
        crowds.append([found.tobytes() for found in reversed(backwards)])
        assert engine.seq_match(engine.seq_new(), asked[-1]) == 0, "a prefix has been kept"
        engine.close()
    assert all(crowd == alone for crowd in crowds)
    if dtype != "f32":
        engine = Engine.load(tmp_path, dtype="f32", **OPTIONS)
        for exact, found in zip(embed_together(engine, asked), alone, strict=True):
            error = np.frombuffer(found, np.float32) - exact
            assert 0 < np.linalg.norm(error) < DTYPES[dtype] * np.linalg.norm(exact)
        engine.close()


def test_what_an_encoder_cannot_do(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "bert", tokenizer=False)
    engine = Engine.load(tmp_path, **{**OPTIONS, "n_ubatch": 48})
    assert engine.max_sequence_length == 48, "a text has to fit into one pass"
    seq_id = engine.seq_new()
    said = r"an encoder \(bert\) can only pool"
    with pytest.raises(InvalidRequestError, match=said):
        engine.prefill_chunk(seq_id, [1, 2], logits=True)
    with pytest.raises(InvalidRequestError, match=said):
        engine.prefill_chunk(seq_id, [1, 2])
    with pytest.raises(InvalidRequestError, match=said):
        engine.decode_batch([seq_id], [1])
    with pytest.raises(InvalidRequestError, match=said):
        engine.step(StepPlan((StepEntry(seq_id, (1, 2), False, targets=(3,)),), 0, 2))
    with pytest.raises(RequestTooLongError, match=r"49 tokens; at most 48 fit .*n_ubatch"):
        engine.embed(seq_id, [1] * 49)
    whole = engine.embed(seq_id, [1] * 48, "cls")
    with pytest.raises(InvalidRequestError, match="takes a text as a whole, in a new sequence"):
        engine.embed(seq_id, [1])
    copy = engine.seq_new("other")
    assert (engine.embed(copy, [1] * 48, "cls") == whole).all()
    engine.check_integrity()
    engine.close()


@pytest.mark.parametrize("family", ["llama3", "qwen2", "gemma2", "gemma3", "gpt2", "olmo3"])
def test_is_causal_false_makes_a_decoder_an_encoder(
    family: str, tmp_path: Path, one_thread: None
) -> None:
    architecture, shape = random_shape(family, 3)
    make_checkpoint(tmp_path, architecture, seed=3, dtype="float32", tokenizer=False, **shape)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "is_causal": False}))
    module = transformers.AutoModel.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float32
    ).eval()
    text = texts(module.config.vocab_size)[-2]
    rows = states(module, text)
    live = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for model in (open_model(tmp_path), from_torch(live)):
        assert not model.generates
        engine = Engine.from_loaded(model, EngineConfig(dtype="f32", **OPTIONS))
        (found,) = embed_together(engine, [text])
        assert np.linalg.norm(found - rows.mean(0)) < CLOSE * np.linalg.norm(rows, axis=1).mean()
        engine.close()


@pytest.mark.parametrize("family", ["lfm2", "cohere2"])
def test_is_causal_false_is_refused_where_it_is_not_computed(family: str, tmp_path: Path) -> None:
    architecture, shape = random_shape(family, 1)
    make_checkpoint(tmp_path, architecture, tokenizer=False, **shape)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "is_causal": False}))
    with pytest.raises(ModelFormatError, match="is_causal is False; expected true: recurrent"):
        open_model(tmp_path)
