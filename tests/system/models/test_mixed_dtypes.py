"""Models whose matrices have types of their own: GGUF files, and mixtures made while loading.

Those of files keep their numbers and their size. The oracle is the same model as plain numbers,
dequantised by the `gguf` package.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_files import SUPER_BLOCK_SHAPE, gguf_name, write_gguf
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from pybatcher.engine import Engine
from pybatcher.errors import ModelFormatError
from pybatcher.testing.checkpoints import make_checkpoint

N_HEADS = {
    "attn_q": SUPER_BLOCK_SHAPE["num_attention_heads"],
    "attn_k": SUPER_BLOCK_SHAPE["num_key_value_heads"],
}
PROMPT = list(range(5, 45))
SCALE_BYTES = {Kind.Q4_K: (0, 4), Kind.Q5_K: (0, 4), Kind.Q6_K: (208, 2), Kind.IQ4_NL: (0, 2)}


def q4_k_m(name: str) -> Kind:
    """A mixture as llama.cpp makes it: some values and all outputs of MLPs are finer."""
    if name in ("token_embd.weight", "output.weight", "blk.0.attn_v.weight"):
        return Kind.Q6_K
    return Kind.Q6_K if "ffn_down" in name else Kind.Q4_K


def every_kind(name: str) -> Kind:
    """Types side by side: in each stack of matrices too."""
    kinds = {
        "token_embd": Kind.F16,
        "attn_q": Kind.Q5_K,
        "attn_k": Kind.Q8_0,
        "attn_v": Kind.Q6_K,
        "attn_output": Kind.IQ4_NL,
        "ffn_gate": Kind.Q4_K,
        "ffn_up": Kind.F32,
        "ffn_down": Kind.Q5_0,
        "output": Kind.BF16,
    }
    return kinds.get(name.split(".")[-2], Kind.F32)


def with_small_scales(path: Path) -> None:
    """Give blocks of random bytes scales with which a model's numbers stay small."""
    data = bytearray(path.read_bytes())
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.tensor_type not in SCALE_BYTES:
            continue
        n_bytes = gguf.GGML_QUANT_SIZES[tensor.tensor_type][1]
        at, size = SCALE_BYTES[tensor.tensor_type]
        for begin in range(tensor.data_offset, tensor.data_offset + tensor.n_bytes, n_bytes):
            scales = np.array([2e-4, 1e-3][: size // 2], np.float16)
            data[begin + at : begin + at + size] = scales.tobytes()
    path.write_bytes(data)


def write(directory: Path, target: Path, kind: Kind | Callable[[str], Kind]) -> Path:
    path = write_gguf(directory, target, kind)
    with_small_scales(path)
    return path


def dequantised(path: Path, directory: Path, target: Path) -> Path:
    """Write the values of a GGUF file of the llama architecture as safetensors."""
    shutil.copytree(directory, target)
    names = load_file(directory / "model.safetensors").keys()
    found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    weights = {}
    for name in names:
        tensor = found[gguf_name(name)]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        n_heads = N_HEADS.get(tensor.name.split(".")[-2])
        if n_heads is not None:
            pairs = values.reshape(n_heads, -1, 2, values.shape[-1])
            values = pairs.swapaxes(1, 2).reshape(values.shape)
        weights[name] = torch.from_numpy(np.array(values, np.float32))
    save_file(weights, target / "model.safetensors")
    return target


def load(path: Path, **options: Any) -> Engine:
    return Engine.load(path, n_ctx=128, n_parallel=2, n_threads=2, **options)


def logits(path: Path, chunks: tuple[int, ...] = (len(PROMPT),), **options: Any) -> NDArray[Any]:
    """Return the logits after PROMPT, computed in chunks, and after three tokens more."""
    engine = load(path, **options)
    seq_id = engine.seq_new()
    first = 0
    for size in chunks:
        row = engine.prefill_chunk(seq_id, PROMPT[first : first + size], logits=True)
        first += size
    rows = [row, *(engine.prefill_chunk(seq_id, [t], logits=True) for t in (9, 300, 12))]
    engine.close()
    return np.array(rows)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("hf") / "llama", "llama", **SUPER_BLOCK_SHAPE)


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_NL, q4_k_m])
def test_blocks_are_read_as_the_reference_reads_them(
    kind: Kind | Callable[[str], Kind], directory: Path, tmp_path: Path
) -> None:
    """As f32, bit for bit: what the engine has of a super-block is what `gguf` makes of it."""
    path = write(directory, tmp_path / "model.gguf", kind)
    plain = dequantised(path, directory, tmp_path / "plain")
    for dtype in ("f32", "int8"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that int8 cannot hold them
            found, expected = logits(path, dtype=dtype), logits(plain, dtype=dtype)
        # int8 keeps the numbers of IQ4_NL; the same as f32 are rounded in a group without a -127.
        is_rounded = kind == Kind.IQ4_NL and dtype == "int8"
        np.testing.assert_allclose(found, expected, rtol=1e-5 if is_rounded else 0)


@pytest.mark.parametrize(
    ("kind", "dtypes", "tolerance"),
    [
        (Kind.Q4_K, "q4_k", 0.01),
        (Kind.Q5_K, "q5_k", 0.005),
        (Kind.Q6_K, "q6_k", 0.005),
        (Kind.IQ4_NL, "iq4_nl", 0.02),
        (q4_k_m, "q4_k, q6_k", 0.02),
        # dtype="bf16" makes half of this error.
        (every_kind, {"q4_k", "f32", "int8", "bf16", "q5_k", "iq4_nl", "q5_0", "q6_k"}, 0.08),
    ],
)
def test_each_matrix_keeps_its_dtype(
    kind: Kind | Callable[[str], Kind],
    dtypes: str | set[str],
    tolerance: float,
    directory: Path,
    tmp_path: Path,
) -> None:
    """The logits are those of the values, but for the rounding of activations to int8."""
    path = write(directory, tmp_path / "model.gguf", kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is lost
        made = logits(path, dtype="auto", kv_dtype="f32")
        engine = load(path, dtype="auto")
    found = str(engine.description()["dtypes"])
    assert (found if isinstance(dtypes, str) else set(found.split(", "))) == dtypes
    assert engine.description()["dtype"] == found.split(", ")[0]
    engine.close()
    exact = logits(dequantised(path, directory, tmp_path / "plain"), dtype="f32")
    error = np.linalg.norm(made - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert error.max() < tolerance
    assert error.min() > 0  # other products than those of f32


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_NL, q4_k_m])
def test_weights_take_little_more_than_in_the_file(
    kind: Kind | Callable[[str], Kind], directory: Path, tmp_path: Path
) -> None:
    path = write(directory, tmp_path / "model.gguf", kind)
    engine = load(path)
    in_file = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)
    assert int(engine.description()["weight_bytes"]) <= 1.05 * in_file
    engine.close()


@pytest.mark.parametrize("kind", [q4_k_m, every_kind])
def test_chunks_change_no_bit(kind: Callable[[str], Kind], directory: Path, tmp_path: Path) -> None:
    path = write(directory, tmp_path / "model.gguf", kind)
    at_once = logits(path)
    for chunks in ((1, 39), (17, 20, 3), (1,) * 40):
        np.testing.assert_array_equal(logits(path, chunks), at_once)


def test_the_cache_keeps_mixed_weights(directory: Path, tmp_path: Path) -> None:
    path = write(directory, tmp_path / "model.gguf", q4_k_m)
    cache = tmp_path / "cache"
    expected = logits(path)
    for state in ("written", "found"):
        engine = load(path, weights_cache=str(cache))
        found = engine.description()["weights_cache"] in ("mapped", "copied")
        assert found == (state == "found")
        engine.close()
        np.testing.assert_array_equal(logits(path, weights_cache=str(cache)), expected)
    with pytest.warns(UserWarning, match="rounded to int8"):
        load(path, weights_cache=str(cache), dtype="int8").close()
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_NL])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_scales_that_are_no_numbers_are_refused(
    kind: Kind, bad: float, directory: Path, tmp_path: Path
) -> None:
    path = write(directory, tmp_path / "model.gguf", kind)
    (entry,) = [t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_up.weight"]
    at, size = SCALE_BYTES[kind]
    data = bytearray(path.read_bytes())
    end = entry.data_offset + at + size
    data[end - 2 : end] = np.float16(bad).tobytes()  # the scale of mins, where there is one
    path.write_bytes(data)
    with pytest.raises(ModelFormatError, match=r"layers\.1\.up\.weight.* at \[0, 0\]"):
        load(path)


def test_mixtures_are_made_while_loading(directory: Path, tmp_path: Path) -> None:
    """More bits lose less, and a mixture of four bits less than int4."""
    exact = logits(directory, dtype="f32")
    made = {"q6_k": "q6_k", "q5_k_m": "q5_k, q6_k", "q4_k_m": "q4_k, q6_k", "int4": "int4"}
    errors = []
    for dtype, dtypes in made.items():
        cache = str(tmp_path / dtype)
        rows = logits(directory, dtype=dtype, kv_dtype="f32", weights_cache=cache)
        again = {"dtype": dtype, "kv_dtype": "f32", "weights_cache": cache}
        np.testing.assert_array_equal(logits(directory, (1, 20, 19), **again), rows)
        engine = load(directory, **again)
        assert engine.description()["dtypes"] == dtypes
        assert engine.description()["weights_cache"] in ("mapped", "copied")
        engine.close()
        errors.append(float(np.linalg.norm(rows - exact)))
    assert errors == sorted(errors)
    assert errors[2] < 0.9 * errors[3]
