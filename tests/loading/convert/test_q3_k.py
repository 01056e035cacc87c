"""The oracle is the `gguf` package, on blocks of any bytes."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_files import write_gguf

from pybatcher.engine import Engine
from pybatcher.loading.checkpoints.tensors import Tensor
from pybatcher.loading.convert import q3_k
from pybatcher.loading.convert.q3_k import q3_k_as_q6_k
from pybatcher.loading.gguf.model import open_gguf
from pybatcher.params.config import EngineConfig
from pybatcher.testing.checkpoints import make_checkpoint


def test_the_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(q3_k, "_CHUNK", 100)
    rows = np.random.default_rng(1).integers(0, 256, (70, 5 * 110), dtype=np.uint8)
    made = q3_k_as_q6_k(rows)
    assert made.shape == (70, 5 * 210)
    with np.errstate(all="ignore"):  # factors are of any bits
        expected = gguf.quants.dequantize(rows, Kind.Q3_K)
        found = gguf.quants.dequantize(made, Kind.Q6_K)
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(expected)) > 1000


def test_a_file_is_computed_with_as_it_is(tmp_path: Path) -> None:
    """Without the warning of matrices that are rounded."""
    shape = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 32}
    directory = make_checkpoint(tmp_path / "hf", "llama", **shape)
    model = open_gguf(write_gguf(directory, tmp_path / "model.gguf", Kind.Q3_K))
    tensors = {
        name: Tensor(q3_k_as_q6_k(tensor.array), "q6_k", tensor.source)
        if tensor.dtype == "q3_k"
        else tensor
        for name, tensor in model.tensors.items()
    }
    assert model.dtype == "q6_k"
    rows = []
    for one in (model, replace(model, tensors=tensors)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            engine = Engine.from_loaded(one, EngineConfig(n_ctx=64))
        assert engine.description()["dtype"] == "q6_k"
        rows.append(engine.prefill_chunk(engine.seq_new(), [5, 90, 200], logits=True))
        engine.close()
    np.testing.assert_array_equal(*rows)
    assert np.isfinite(rows[0]).all()
