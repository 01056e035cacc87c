"""Models whose matrices have types of their own: GGUF files, and mixtures made while loading.

Those of files keep their numbers and their size. The oracle is the same model as plain numbers,
dequantised by the `gguf` package.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from functools import cache
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
from pybatcher.loading.checkpoints.blocks import BLOCKS
from pybatcher.testing.checkpoints import make_checkpoint

N_HEADS = {
    "attn_q": SUPER_BLOCK_SHAPE["num_attention_heads"],
    "attn_k": SUPER_BLOCK_SHAPE["num_key_value_heads"],
}
PROMPT = list(range(5, 45))
NATIVE = {
    Kind[block.gguf_name]: dtype
    for dtype, block in BLOCKS.items()
    if block.native and block.gguf_name and dtype not in ("int8", "int4", "mxfp4")
}
"""The engine's formats with f16 scales that nothing is rounded to, by their GGUF types."""
ADDED = {Kind.Q4_1: -1.5e-3, Kind.Q5_1: -3e-3}
"""The second f16 number of formats that add it; others subtract what it multiplies."""
TOLERANCES = {Kind.Q4_K: 0.01, Kind.Q5_K: 0.005, Kind.Q6_K: 0.005}


@cache
def scale_places(kind: Kind) -> list[int]:
    """Return where the f16 numbers of a block lie: a NaN there makes numbers that are none."""
    n_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    places = []
    for at in range(0, n_bytes, 2):
        block = np.zeros((1, n_bytes), np.uint8)
        block[0, at + 1] = 0x7E
        if np.isnan(gguf.quants.dequantize(block, kind)).any():
            places.append(at)
    return places


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
    """Give blocks scales with which a model's numbers stay small."""
    data = bytearray(path.read_bytes())
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.tensor_type not in NATIVE:
            continue
        n_bytes = gguf.GGML_QUANT_SIZES[tensor.tensor_type][1]
        for begin in range(tensor.data_offset, tensor.data_offset + tensor.n_bytes, n_bytes):
            for place, scale in zip(
                scale_places(tensor.tensor_type),
                (2e-4, ADDED.get(tensor.tensor_type, 1e-3)),
                strict=False,
            ):
                data[begin + place : begin + place + 2] = np.float16(scale).tobytes()
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


@pytest.mark.parametrize("kind", [*NATIVE, q4_k_m])
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
        # int8 keeps the numbers of some; the same as f32 are rounded: of IQ4_NL, in a group without
        # a -127.
        keeps = dtype == "int8" and kind in NATIVE and BLOCKS[NATIVE[kind]].in_int8
        if keeps and kind != Kind.IQ4_NL:
            continue
        is_rounded = keeps
        np.testing.assert_allclose(found, expected, rtol=1e-5 if is_rounded else 0)


@pytest.mark.parametrize(
    ("kind", "dtypes", "tolerance"),
    [
        *((kind, dtype, TOLERANCES.get(kind, 0.02)) for kind, dtype in NATIVE.items()),
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


@pytest.mark.parametrize("kind", [*NATIVE, q4_k_m])
def test_weights_take_little_more_than_in_the_file(
    kind: Kind | Callable[[str], Kind], directory: Path, tmp_path: Path
) -> None:
    path = write(directory, tmp_path / "model.gguf", kind)
    engine = load(path)
    in_file = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)
    assert int(engine.description()["weight_bytes"]) <= 1.05 * in_file
    engine.close()


@pytest.mark.parametrize("kind", [*NATIVE, q4_k_m, every_kind])
def test_chunks_change_no_bit(
    kind: Kind | Callable[[str], Kind], directory: Path, tmp_path: Path
) -> None:
    path = write(directory, tmp_path / "model.gguf", kind)
    at_once = logits(path)
    for chunks in ((1, 39), (17, 20, 3), (1,) * 40):
        np.testing.assert_array_equal(logits(path, chunks), at_once)


def test_the_cache_keeps_mixed_weights(directory: Path, tmp_path: Path) -> None:
    path = write(directory, tmp_path / "model.gguf", q4_k_m)
    folder = tmp_path / "cache"
    expected = logits(path)
    for state in ("written", "found"):
        engine = load(path, weights_cache=str(folder))
        found = engine.description()["weights_cache"] in ("mapped", "copied")
        assert found == (state == "found")
        engine.close()
        np.testing.assert_array_equal(logits(path, weights_cache=str(folder)), expected)
    with pytest.warns(UserWarning, match="rounded to int8"):
        load(path, weights_cache=str(folder), dtype="int8").close()
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("kind", NATIVE)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_scales_that_are_no_numbers_are_refused(
    kind: Kind, bad: float, directory: Path, tmp_path: Path
) -> None:
    path = write(directory, tmp_path / "model.gguf", kind)
    (entry,) = [t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_up.weight"]
    data = bytearray(path.read_bytes())
    begin = entry.data_offset + scale_places(kind)[-1]  # the scale of mins, where there is one
    data[begin : begin + 2] = np.float16(bad).tobytes()
    path.write_bytes(data)
    with pytest.raises(ModelFormatError, match=r"layers\.1\.up\.weight.* at \[0, 0\]"):
        load(path)


def test_mixtures_are_made_while_loading(directory: Path, tmp_path: Path) -> None:
    """More bits lose less, and a mixture of four bits less than int4."""
    exact = logits(directory, dtype="f32")
    made = {"q6_k": "q6_k", "q5_k_m": "q5_k, q6_k", "q4_k_m": "q4_k, q6_k", "int4": "int4"}
    errors = []
    for dtype, dtypes in made.items():
        folder = str(tmp_path / dtype)
        rows = logits(directory, dtype=dtype, kv_dtype="f32", weights_cache=folder)
        again = {"dtype": dtype, "kv_dtype": "f32", "weights_cache": folder}
        np.testing.assert_array_equal(logits(directory, (1, 20, 19), **again), rows)
        engine = load(directory, **again)
        assert engine.description()["dtypes"] == dtypes
        assert engine.description()["weights_cache"] in ("mapped", "copied")
        engine.close()
        errors.append(float(np.linalg.norm(rows - exact)))
    assert errors == sorted(errors)
    assert errors[2] < 0.9 * errors[3]
