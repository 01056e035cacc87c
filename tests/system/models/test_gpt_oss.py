"""gpt-oss with its experts in MXFP4: from safetensors and GGUF, against the numbers they hold."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_helpers import TARGETS
from gguf import GGMLQuantizationType as Kind
from gguf_files import write_gguf
from gpt_oss_files import write_dequantised, write_mxfp4
from numpy.typing import NDArray
from safetensors.numpy import save_file
from safetensors.torch import load_file as load_torch

from pybatcher.engine import Engine
from pybatcher.errors import ModelFormatError
from pybatcher.testing.checkpoints import make_checkpoint

SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "swiglu_limit": 7.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
    },
}
LENGTH = 290  # past one segment of attention (256), and past windows
PROMPT = [7 * i * i % 380 for i in range(LENGTH)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("gpt_oss") / "plain"
    return make_checkpoint(directory, "gpt_oss", dtype="bfloat16", **SHAPE)


@pytest.fixture(scope="module")
def mxfp4(plain: Path) -> Path:
    return write_mxfp4(plain, plain.parent / "mxfp4")


@pytest.fixture(scope="module")
def dequantised(plain: Path) -> Path:
    return write_dequantised(plain, plain.parent / "dequantised")


@pytest.fixture(scope="module")
def gguf(plain: Path) -> Path:
    def kind(name: str) -> Kind | None:
        return Kind.MXFP4 if "_exps.weight" in name else Kind.BF16

    return write_gguf(plain, plain.parent / "model.gguf", kind)


def torch_file(directory: Path) -> dict[str, torch.Tensor]:
    return load_torch(directory / "model.safetensors")


def load(path: Path, **options: Any) -> Engine:
    return Engine.load(path, n_ctx=1024, n_parallel=4, n_threads=2, **options)


def logits(path: Path, chunk: int = LENGTH, **options: Any) -> NDArray[Any]:
    """Return the logits after PROMPT, computed in chunks, and after each of three tokens more."""
    engine = load(path, **options)
    seq_id = engine.seq_new()
    for first in range(0, LENGTH, chunk):
        row = engine.prefill_chunk(seq_id, PROMPT[first : first + chunk], logits=True)
    rows = [row, *(engine.prefill_chunk(seq_id, [t], logits=True) for t in (9, 300, 12))]
    engine.check_integrity()
    engine.close()
    return np.array(rows)


def test_mxfp4_has_the_numbers_of_transformers(mxfp4: Path, dequantised: Path, gguf: Path) -> None:
    """As f32, bit for bit, from safetensors and from GGUF."""
    expected = logits(dequantised, dtype="f32")
    np.testing.assert_array_equal(logits(mxfp4, dtype="f32"), expected)
    np.testing.assert_array_equal(logits(gguf, dtype="f32"), expected)


def test_mxfp4_loses_nothing_as_bf16_and_says_what_int8_loses(mxfp4: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(mxfp4, dtype="bf16").close()
    with pytest.warns(UserWarning, match="rounded to int8: 36 of MXFP4"):
        load(mxfp4, dtype="int8").close()


def test_each_matrix_keeps_its_dtype(mxfp4: Path, dequantised: Path, gguf: Path) -> None:
    """The logits are those of the numbers, but for the rounding of activations."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is lost
        made = logits(mxfp4, kv_dtype="f32")
    np.testing.assert_array_equal(logits(gguf, kv_dtype="f32"), made)
    engine = load(mxfp4)
    assert engine.description()["dtypes"] == "mxfp4, bf16, f32"
    engine.close()
    exact = logits(dequantised, dtype="f32")
    in_bf16 = logits(dequantised, dtype="bf16", kv_dtype="f32")
    error, allowed = (np.linalg.norm(x - exact, axis=1) for x in (made, in_bf16))
    assert error.min() > 0
    assert error.max() < 2 * allowed.max()


def test_matrices_take_the_bytes_of_the_file(tmp_path: Path) -> None:
    # Whole tiles of every target.
    sizes = {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 8}
    plain = make_checkpoint(tmp_path / "plain", "gpt_oss", dtype="bfloat16", **(SHAPE | sizes))
    mxfp4 = write_mxfp4(plain, tmp_path / "mxfp4")
    # Vectors, biases and routers are f32 in the engine, and bf16 in the file. A router's few rows
    # take a tile, of at most 64.
    wider = (".bias", "_bias", ".sinks", "norm.weight")
    tensors = torch_file(mxfp4)
    routers = [name for name in tensors if name.endswith("router.weight")]
    size = sum(64 * tensors.pop(name).shape[1] * 4 for name in routers)
    size += sum(t.nbytes * (2 if name.endswith(wider) else 1) for name, t in tensors.items())
    engine = load(mxfp4)
    assert int(engine.description()["weight_bytes"]) <= 1.05 * size
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_chunks_change_no_bit(
    mxfp4: Path, target: str, kv_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYBATCHER_CPU_TARGET", target)
    at_once = logits(mxfp4, kv_dtype=kv_dtype)
    for chunk in (1, 7, 64):
        np.testing.assert_array_equal(logits(mxfp4, chunk, kv_dtype=kv_dtype), at_once)


def test_company_changes_no_bit(mxfp4: Path) -> None:
    """Four sequences of other lengths, decoded together and alone."""
    engine = load(mxfp4)
    lengths = (3, 40, 129, 280)
    alone = []
    for length in lengths:
        seq_id = engine.seq_new(f"alone {length}")
        engine.prefill_chunk(seq_id, PROMPT[:length])
        alone.append(engine.decode_batch([seq_id], [5], logits=True)[1][0])
        engine.seq_remove(seq_id)
    seq_ids = []
    for length in lengths:
        seq_ids.append(engine.seq_new(f"together {length}"))
        engine.prefill_chunk(seq_ids[-1], PROMPT[:length])
    together = engine.decode_batch(seq_ids, [5] * 4, logits=True)[1]
    np.testing.assert_array_equal(together, np.array(alone))
    engine.close()


def test_the_cache_keeps_mxfp4(mxfp4: Path, tmp_path: Path) -> None:
    expected = logits(mxfp4)
    for state in ("written", "found"):
        engine = load(mxfp4, weights_cache=str(tmp_path))
        found = engine.description()["weights_cache"] in ("mapped", "copied")
        assert found == (state == "found")
        engine.close()
        np.testing.assert_array_equal(logits(mxfp4, weights_cache=str(tmp_path)), expected)


def test_scales_that_are_no_numbers_are_refused(mxfp4: Path, tmp_path: Path) -> None:
    tensors = {
        name: tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
        for name, tensor in torch_file(mxfp4).items()
    }
    tensors["model.layers.1.mlp.experts.down_proj_scales"][3, 7, 2] = 255
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((mxfp4 / name).read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    for dtype in ("auto", "f32"):
        with pytest.raises(
            ModelFormatError, match=r"layers\.1\.experts\.3\.down\.weight.* at \[7, 64\]"
        ):
            load(tmp_path, dtype=dtype)
