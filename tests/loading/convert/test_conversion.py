"""Conversion of blocks. The `gguf` package's own quantisation is the oracle."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from pybatcher.errors import ModelFormatError
from pybatcher.loading import Tensor
from pybatcher.loading.checkpoints.blocks import BLOCKS, ENGINE_BLOCKS, MXFP4_PARTS, block_name
from pybatcher.loading.convert import conversion
from pybatcher.loading.convert.conversion import (
    check_conversion,
    convert_tensors,
    engine_dtype,
    native_matrices,
)

ROWS, COLUMNS = 5, 512
CONVERTED = [dtype for dtype in BLOCKS if dtype not in (*ENGINE_BLOCKS, MXFP4_PARTS)]


def blocks(dtype: str, rows: int = ROWS, columns: int = COLUMNS) -> Tensor:
    """Return random blocks whose scales are all below one half."""
    block = BLOCKS[dtype]
    rng = np.random.default_rng(rows)
    shape = (rows, columns // block.n_elements * block.n_bytes)
    return Tensor(rng.integers(0, 0x38, shape, np.uint8), dtype, f"file: tensor {dtype}")


def convert(tensor: Tensor, dtype: str) -> Tensor:
    """Return the converted array for an engine of `dtype`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entry = convert_tensors({"a": tensor}, dtype, "model.gguf")["a"]
    if len(entry) == 2:
        assert entry[0] is tensor.array
        return Tensor(entry[0], entry[1], tensor.source)
    function, made_dtype, *shape = entry
    made = Tensor(function(), made_dtype, tensor.source)
    assert made.shape == tuple(shape)
    return made


def reference(tensor: Tensor) -> NDArray[np.float32]:
    values: NDArray[np.float32] = gguf.quants.dequantize(
        tensor.array, Kind[block_name(tensor.dtype)]
    )
    return values


@pytest.mark.parametrize("dtype", CONVERTED)
def test_f32_is_what_the_reference_makes(dtype: str) -> None:
    tensor = blocks(dtype)
    made = convert(tensor, "f32")
    assert convert(tensor, "int4").dtype == "f32"  # which the engine rounds
    assert (made.dtype, made.shape, made.source) == ("f32", tensor.shape, tensor.source)
    assert made.array.any()
    np.testing.assert_array_equal(made.array, reference(tensor))


@pytest.mark.parametrize("dtype", ["iq2_xxs", "iq3_s"])
def test_bf16_is_rounded_to_nearest_even(dtype: str) -> None:
    tensor = blocks(dtype)
    made = convert(tensor, "bf16")
    rounded = torch.from_numpy(reference(tensor)).bfloat16().view(torch.uint16).numpy()
    assert made.dtype == "bf16"
    np.testing.assert_array_equal(made.array, rounded)


def test_bf16_keeps_nan() -> None:
    """The engine can then refuse it by name."""
    tensor = blocks("iq2_xxs", 1)
    scales = np.array([np.nan, np.inf], np.float16)
    tensor.array.reshape(2, 66)[:, :2] = scales.view(np.uint8).reshape(2, 2)
    made = convert(tensor, "bf16").array.astype(np.uint32) << 16
    assert not np.isfinite(made.view(np.float32)).all()
    assert np.isnan(made.view(np.float32)[:, :256]).all()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int4"])
def test_blocks_that_the_engine_knows_go_as_they_are(dtype: str) -> None:
    for kind in ENGINE_BLOCKS:
        tensor = blocks(kind)
        assert convert(tensor, dtype).array is tensor.array


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int4"])
def test_plain_numbers_go_as_they_are(dtype: str) -> None:
    for kind, numpy_type in (("f32", np.float32), ("f16", np.float16), ("bf16", np.uint16)):
        tensor = Tensor(np.zeros((3, 4), numpy_type), kind, "a tensor")
        assert convert(tensor, dtype).array is tensor.array


def test_rows_in_parts_are_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = blocks("iq3_s", 67)
    at_once = convert(tensor, "f32").array
    monkeypatch.setattr(conversion, "_CHUNK", 2 * COLUMNS + 1)
    np.testing.assert_array_equal(convert(tensor, "f32").array, at_once)
    monkeypatch.setattr(conversion, "_CHUNK", 1)
    np.testing.assert_array_equal(convert(tensor, "f32").array, at_once)


def warned(tensors: dict[str, Tensor], dtype: str) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_conversion(tensors, dtype, "model.gguf")
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("kinds", "dtype", "lost"),
    [
        (["int8", "int8"], "int8", None),
        (["int4", "f32"], "int4", None),
        (["int4", "q5_0", "iq4_nl", "int8"], "int8", None),
        (["q4_k", "q6_k", "int8"], "f32", None),
        (
            ["q4_k", "q6_k", "q4_k"],
            "int4",
            "rounded to int4: 2 of Q4_K and 1 of Q6_K;",
        ),
        (
            ["int4", "int4", "q6_k"],
            "int4",
            "rounded to int4: 1 of Q6_K;",
        ),
        (["int8", "f16"], "bf16", "rounded to bf16: 1 of Q8_0"),
    ],
)
def test_one_warning_says_what_is_lost(kinds: list[str], dtype: str, lost: str | None) -> None:
    plain: dict[str, Any] = {"f32": np.float32, "f16": np.float16}
    tensors = {
        str(i): Tensor(np.zeros((3, 4), plain[kind]), kind, "") if kind in plain else blocks(kind)
        for i, kind in enumerate(kinds)
    }
    messages = warned(tensors, dtype)
    if lost is None:
        assert messages == []
    else:
        (message,) = messages
        assert message.startswith("model.gguf: ")
        assert lost in message


def test_matrices_that_keep_their_dtype() -> None:
    vector = Tensor(np.zeros(4, np.float32), "f32", "")
    plain = Tensor(np.zeros((3, 4), np.float16), "f16", "")
    tensors = {kind: blocks(kind) for kind in BLOCKS} | {"vector": vector, "plain": plain}
    native = native_matrices(tensors)
    assert native == {*ENGINE_BLOCKS, MXFP4_PARTS, "plain"}
    with pytest.warns(UserWarning, match="rounded to int4: .*1 of IQ2_S") as caught:
        entries = convert_tensors(tensors, "int4", "model.gguf", native)
    assert not any(block_name(name) in str(caught[0].message).split() for name in native)
    assert {name: entries[name][1] for name in native} == {
        **{name: name for name in ENGINE_BLOCKS},
        **{MXFP4_PARTS: "mxfp4", "plain": "f16"},
    }
    assert native_matrices({"vector": vector, "plain": plain}) == set()


def test_the_dtype_of_the_other_matrices() -> None:
    prevailing = ("f32", "f16", "bf16", "int8", "int4", "q4_k", "q5_k", "q6_k")
    others = ["f32", "bf16", "bf16", "int8", "int4", "int8", "int8", "int8"]
    assert [engine_dtype(dtype) for dtype in prevailing] == others


def test_without_the_gguf_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "gguf"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert warned({"a": blocks("int8"), "b": blocks("int4")}, "f32") == []
    convert(blocks("iq4_nl"), "int8")
    with pytest.raises(
        ModelFormatError, match=r"pip install --upgrade 'pybatcher-engine\[gguf\]'"
    ) as caught:
        warned({"a": blocks("iq3_s")}, "f32")
    assert str(caught.value).startswith("model.gguf: has IQ3_S weights")


def test_a_gguf_package_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise NotImplementedError("Dequantization for IQ1_M is not yet implemented")

    monkeypatch.setattr(gguf.quants, "dequantize", refuse)
    with pytest.raises(ModelFormatError, match=r"pip install --upgrade 'pybatcher-engine\[gguf\]'"):
        check_conversion({"a": blocks("iq1_m")}, "f32", "model.gguf")
