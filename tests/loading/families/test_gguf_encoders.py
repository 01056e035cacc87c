"""Encoders in GGUF files that the `gguf` package writes: the numbers of their checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf_encoders import ENCODERS_OF_GGUF, write_encoder_gguf

from pybatcher.engine import Engine
from pybatcher.errors import ModelFormatError
from pybatcher.loading import LoadedModel, open_model
from pybatcher.params.embedding_defaults import EmbeddingDefaults
from pybatcher.testing.checkpoints import make_checkpoint

TEXT = [10 + i * 37 % 300 for i in range(290)]
GEMMA = {  # what the file does not say is what llama.cpp takes it to be
    "sliding_window_pattern": 6,
    "num_hidden_layers": 7,
    "query_pre_attn_scalar": 16,
    "hidden_size": 96,
}


@pytest.fixture(scope="module", params=ENCODERS_OF_GGUF)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape: dict[str, Any] = {"num_attention_heads": 6}
    if request.param == "embedding_gemma":
        shape = {**GEMMA}
    shape |= {"hidden_size": 96, "intermediate_size": 128}
    path = tmp_path_factory.mktemp("gguf") / request.param
    return make_checkpoint(path, request.param, seed=3, tokenizer=False, **shape)


def vector(path: Path, **options: Any) -> bytes:
    engine = Engine.load(path, n_ctx=512, **options)
    try:
        return engine.embed(engine.seq_new(), TEXT, "mean").tobytes()
    finally:
        engine.close()


def test_vectors_have_the_bits_of_the_checkpoint(directory: Path, tmp_path: Path) -> None:
    file = write_encoder_gguf(directory, tmp_path / "model.gguf")
    assert vector(file, dtype="f32") == vector(directory, dtype="f32")
    model = open_model(file)
    assert (model.generates, model.config.causal) == (False, False)
    assert model.embedding == EmbeddingDefaults("mean", normalised=True)
    assert model.tokenizer.backend is not None
    assert model.tokenizer.backend.encode("w9 w7").ids == [2, 9, 7, 3]


def test_matrices_in_blocks(directory: Path, tmp_path: Path) -> None:
    file = write_encoder_gguf(directory, tmp_path / "q8.gguf", gguf.GGMLQuantizationType.Q8_0)
    exact = np.frombuffer(vector(directory, dtype="f32"), np.float32)
    found = np.frombuffer(vector(file), np.float32)
    assert 0 < np.linalg.norm(found - exact) < 0.1 * np.linalg.norm(exact)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("bert"), "bert", tokenizer=False)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (None, EmbeddingDefaults("mean")),
        (gguf.PoolingType.NONE, EmbeddingDefaults("mean")),
        (gguf.PoolingType.CLS, EmbeddingDefaults("cls", normalised=True)),
        (gguf.PoolingType.LAST, EmbeddingDefaults("last", normalised=True)),
    ],
)
def test_poolings(
    kind: gguf.PoolingType | None, expected: EmbeddingDefaults, bert: Path, tmp_path: Path
) -> None:
    file = write_encoder_gguf(bert, tmp_path / "model.gguf", pooling=kind)
    assert open_model(file).embedding == expected


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"bert.attention.causal": True}, "bert.attention.causal is True"),
        ({"bert.pooling_type": 4}, "bert.pooling_type is 4"),
        ({"bert.attention.layer_norm_epsilon": -1.0}, "layer_norm_epsilon is -1.0"),
        ({"bert.attention.sliding_window": 9}, "sliding_window is 9"),
        ({"bert.context_length": 9}, r"position_embd.*expected \[9, 60\]"),
        ({"bert.attention.head_count": 7}, "head_count is 7"),
    ],
)
def test_keys_that_do_not_fit(keys: dict[str, Any], said: str, bert: Path, tmp_path: Path) -> None:
    file = write_encoder_gguf(bert, tmp_path / "model.gguf", keys=keys)
    with pytest.raises(ModelFormatError, match=said):
        open_model(file)


def test_a_classifier_is_refused(bert: Path, tmp_path: Path) -> None:
    head = {"cls.weight": torch.zeros(60, 60)}
    file = write_encoder_gguf(bert, tmp_path / "model.gguf", tensors=head)
    with pytest.raises(ModelFormatError, match=r"cls\.weight' has no place in the bert"):
        open_model(file)


def test_layers_of_a_modern_bert(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "hf", "modernbert", tokenizer=False)

    def windows(**keys: Any) -> tuple[int, ...]:
        named = {f"modern-bert.{key.replace('__', '.')}": value for key, value in keys.items()}
        file = write_encoder_gguf(directory, tmp_path / "model.gguf", keys=named)
        return open_model(file).config.sliding_windows

    assert windows() == (0, 13, 13, 0)
    assert windows(attention__sliding_window_pattern=2) == (0, 13, 0, 13)
    assert windows(attention__sliding_window_pattern=[1, 0, 0, 1]) == (13, 0, 0, 13)
    assert windows(attention__sliding_window=0) == (0, 0, 0, 0)
    with pytest.raises(ModelFormatError, match="a truth value for each of 4 layers, or the period"):
        windows(attention__sliding_window_pattern=[1, 0])


def open_with_dense(directory: Path, tmp_path: Path, *shapes: tuple[int, ...]) -> LoadedModel:
    rng = np.random.default_rng(5)
    layers = {
        f"dense_{i}.weight": torch.tensor(rng.normal(0, 0.3, shape), dtype=torch.float32)
        for i, shape in enumerate(shapes, start=2)
    }
    return open_model(write_encoder_gguf(directory, tmp_path / "model.gguf", tensors=layers))


def test_dense_layers_of_an_embedding_gemma(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path / "hf", "embedding_gemma", tokenizer=False, **GEMMA)
    head = open_with_dense(directory, tmp_path, (40, 96), (11, 40)).embedding.head
    assert head is not None
    rng = np.random.default_rng(5)
    wide, narrow = (rng.normal(0, 0.3, shape) for shape in ((40, 96), (11, 40)))
    pooled = np.ones(96, np.float32)
    np.testing.assert_allclose(head(pooled), narrow @ (wide @ pooled), rtol=1e-4)
    assert open_with_dense(directory, tmp_path).embedding.head is None
    with pytest.raises(ModelFormatError, match=r"dense_3.*\[11, 41\]; expected .*\[any, 40\]"):
        open_with_dense(directory, tmp_path, (40, 96), (11, 41))
    with pytest.raises(ModelFormatError, match=r"dense_2.*\[96\]; expected"):
        open_with_dense(directory, tmp_path, (96,))
    whole = {"dense_2.weight": torch.zeros(40, 96, dtype=torch.int8)}
    with pytest.raises(ModelFormatError, match=r"found I8 .*; expected F32, F16 or BF16"):
        open_model(write_encoder_gguf(directory, tmp_path / "model.gguf", tensors=whole))
