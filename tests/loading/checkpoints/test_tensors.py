from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from quantised_files import awq, random_numbers, read_matrix

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.tensors import Tensor, TensorRule, gather

MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)
AVAILABLE = {
    "there": Tensor(MATRIX, "f32", "file: tensor there"),
    "mask": Tensor(np.zeros(8, np.uint8), "BOOL", "file: tensor mask"),
}


def take(**rule: object) -> np.ndarray:
    rule = {"name": "here", "source": "there", "shape": (3, 4), **rule}
    gathered = gather([TensorRule(**rule)], AVAILABLE, "the directory")
    assert list(gathered) == ["here"]
    assert gathered["here"].source == "file: tensor there"
    return gathered["here"].array


def test_views_of_the_tensor() -> None:
    np.testing.assert_array_equal(take(), MATRIX)
    np.testing.assert_array_equal(take(transposed=True), MATRIX.T)
    np.testing.assert_array_equal(take(rows=(1, 3)), MATRIX[1:3])
    np.testing.assert_array_equal(take(transposed=True, rows=(1, 3)), MATRIX[:, 1:3].T)
    assert np.shares_memory(take(transposed=True, rows=(1, 3)), MATRIX)


def test_shapes_of_patch_weights() -> None:
    weight = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    rule = TensorRule(name="here", source="w", shape=(2, 3, 2, 2), reshaped=(2, 12))
    found = gather([rule], {"w": Tensor(weight, "f32", "file: w")}, "the directory")["here"].array
    np.testing.assert_array_equal(found, np.arange(24).reshape(2, 12))
    assert np.shares_memory(found, weight)


def test_neighbouring_columns_are_taken_apart() -> None:
    """Columns of (channel, patch) become columns of (patch, channel), in memory of their own."""
    tensor = Tensor(MATRIX, "f32", "file: tensor there", mapped=True)
    rule = TensorRule(name="here", source="there", shape=(3, 4), column_groups=2)
    found = gather([rule], {"there": tensor}, "the directory")["here"]
    np.testing.assert_array_equal(found.array, MATRIX[:, [0, 2, 1, 3]])
    assert not found.mapped


@pytest.mark.parametrize("rule", [{"reshaped": (3, 256)}, {"column_groups": 2}], ids=str)
def test_blocks_are_not_moved(rule: dict[str, Any]) -> None:
    blocks = Tensor(np.zeros((3, 144), np.uint8), "q4_k", "file: w")
    moved = TensorRule(name="here", source="w", shape=(3, 256), **rule)
    with pytest.raises(ModelFormatError, match="found dtype q4_k; expected one of f32, f16, bf16"):
        gather([moved], {"w": blocks}, "the directory")


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_number_is_added_in_f32(dtype: str) -> None:
    """0.25 and what f16 and bf16 cannot hold beside it."""
    bits = {"f32": np.float32(0.25), "f16": np.float16(0.25), "bf16": np.uint16(0x3E80)}[dtype]
    available = {"w": Tensor(np.array([bits, bits]), dtype, "file: tensor w", mapped=True)}
    rule = TensorRule(name="w", source="w", shape=(2,), plus=1.0 + 2**-20)
    made = gather([rule], available, "the directory")["w"]
    assert (made.dtype, made.array.dtype, made.mapped) == ("f32", np.float32, False)
    np.testing.assert_array_equal(made.array, np.float32([1.25 + 2**-20] * 2))


@pytest.mark.parametrize("rule", [{"transposed": True}, {"index": 0}])
def test_quantised_matrices_are_those_of_linear_modules(rule: dict[str, Any]) -> None:
    """A square one would be read in the wrong way otherwise, without a word."""
    numbers = random_numbers(np.random.default_rng(1), (64, 64), 64, symmetric=False)
    config = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}
    stored = read_matrix(config, awq(numbers))
    available = {"w": Tensor(np.empty((64, 0), np.uint8), "AWQ", "file: tensor w", stored=stored)}
    with pytest.raises(ModelFormatError, match="file: tensor w: is quantised by AWQ; that is read"):
        gather([TensorRule(name="w", source="w", shape=(64, 64), **rule)], available, "here")
    with pytest.raises(ModelFormatError, match=r"found dtype AWQ; expected one of f32, f16, bf16$"):
        gather([TensorRule(name="w", source="w", shape=(64,))], available, "here")
    made = gather(
        [TensorRule(name="w", source="w", shape=(64, 64), rows=(9, 40))], available, "here"
    )
    assert (made["w"].shape, made["w"].n_bytes) == ((31, 64), stored.n_bytes * 31 // 64)


@pytest.mark.parametrize("name", ["positions", "types"])
def test_rows_that_are_added_are_plain_numbers(name: str) -> None:
    """Bytes of blocks were added as if each were a number."""
    plain = Tensor(np.zeros((4, 64), np.float32), "f32", "file: tensor plain")
    blocks = Tensor(np.zeros((4, 68), np.uint8), "int8", "file: tensor blocks")
    available = {"positions": plain, "types": plain, name: blocks}
    added = TensorRule(name="types", source="types", shape=(4, 64))
    rule = TensorRule(name="w", source="positions", shape=(4, 64), plus_row=added)
    with pytest.raises(ModelFormatError, match=r"blocks: found dtype int8; .* f32, f16, bf16$"):
        gather([rule], available, "here")


def test_a_missing_tensor() -> None:
    said = r"^the directory: tensor nowhere is missing; expected shape \[3, 4\]"
    with pytest.raises(ModelFormatError, match=said):
        take(source="nowhere")


@pytest.mark.parametrize("shape", [(4, 3), (3,), (3, 4, 1), (12,)])
def test_another_shape(shape: tuple[int, ...]) -> None:
    said = r"^file: tensor there: found shape \[3, 4\]; expected \["
    with pytest.raises(ModelFormatError, match=said):
        take(shape=shape)


def test_a_type_that_is_no_weights() -> None:
    said = "^file: tensor mask: found dtype BOOL; expected one of f32, f16, bf16"
    with pytest.raises(ModelFormatError, match=said):
        take(source="mask", shape=(8,))


@pytest.mark.parametrize(
    ("dtype", "n_bytes", "n_elements"), [("int8", 68, 64), ("int4", 36, 64), ("q6_k", 420, 512)]
)
def test_weights_in_blocks_are_measured_in_elements(
    dtype: str, n_bytes: int, n_elements: int
) -> None:
    tensor = Tensor(np.zeros((3, n_bytes), np.uint8), dtype, "file: tensor there")
    assert tensor.shape == (3, n_elements)
    rule = TensorRule(name="here", source="there", shape=(3, n_elements))
    assert gather([rule], {"there": tensor}, "")["here"].dtype == dtype
    with pytest.raises(
        ModelFormatError, match=rf"found shape \[3, {n_elements}\]; expected \[3, 4"
    ):
        gather([TensorRule(name="here", source="there", shape=(3, 4))], {"there": tensor}, "")


def test_vectors_are_not_in_blocks() -> None:
    tensor = Tensor(np.zeros(34, np.uint8), "int8", "file: tensor there")
    rule = TensorRule(name="here", source="there", shape=(32,))
    with pytest.raises(
        ModelFormatError, match=r"found dtype int8; expected one of f32, f16, bf16$"
    ):
        gather([rule], {"there": tensor}, "")


@pytest.mark.parametrize("rule", [{}, {"transposed": True}, {"plus": 1.0}, {"rows": (1, 3)}])
def test_float64_is_rounded_to_f32_as_torch_does(rule: dict[str, Any]) -> None:
    values = np.random.default_rng(1).standard_normal((3, 4)) * 1e3
    available = {"w": Tensor(values, "F64", "file: tensor w", mapped=True)}
    made = gather([TensorRule(name="w", source="w", shape=(3, 4), **rule)], available, "here")["w"]
    rounded = torch.from_numpy(values).to(torch.float32).numpy()
    available = {"w": Tensor(rounded, "f32", "file: tensor w")}
    same = gather([TensorRule(name="w", source="w", shape=(3, 4), **rule)], available, "here")["w"]
    assert (made.dtype, made.array.dtype, made.mapped) == ("f32", np.float32, False)
    np.testing.assert_array_equal(made.array, same.array)
