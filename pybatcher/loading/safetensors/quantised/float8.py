"""FP8: e4m3 numbers with a scale for each block, output or tensor.

A module has weight, e4m3 (outputs, inputs), and scales. DeepSeek and Qwen publish weight_scale_inv,
a factor for each block of weight_block_size (128 x 128). Without blocks, the factors are one number
or one for each output, which transformers names weight_scale and Mistral weight_scale_inv. Scales
may be powers of two (`scale_fmt` "ue8m0"), in bytes or in f32. The scales of activations are
ignored. The engine's format "fp8" has blocks of 128 inputs of an output: an f32 scale, then bytes.
https://arxiv.org/abs/2209.05433, https://github.com/deepseek-ai/DeepSeek-V3/blob/main/inference/kernel.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.fields import Fields
from ...checkpoints.limits import MAX_WIDTH
from ...checkpoints.rounding import to_bf16
from ...checkpoints.stored_weight import StoredWeight, chunks_of_rows
from .parts import Parts, to_f32
from .scheme import Scheme, check_names

__all__ = ["Float8Weight", "float8_weight", "read", "read_block_size"]

_Rows = NDArray[np.int64]
_INPUTS = 128  # the inputs of one of the engine's blocks
_OF_BLOCKS = "weight_scale_inv"
_SCALE_BYTES = 4


def _e4m3() -> NDArray[np.float32]:
    """Return the value of each byte: a sign bit, four bits of exponent, three of mantissa.

    0x7f and 0xff are NaN; the format has no infinities.
    """
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    magnitude = np.where(
        exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    )
    magnitude[bits & 127 == 127] = np.nan
    return np.where(bits >= 128, -magnitude, magnitude).astype(np.float32)


_VALUES = _e4m3()


@dataclass(frozen=True, slots=True, eq=False)
class Float8Weight:
    """A `StoredWeight` of e4m3 numbers, made by `float8_weight`.

    numbers: the bytes, (outputs, inputs).
    scales: f32 (blocks of outputs, blocks of inputs).
    block: outputs and inputs of a block.
    rows: the outputs that this matrix has.
    own_dtype: "fp8", or "bf16" if the engine's blocks would have several scales, or if rows are
        not whole blocks.
    """

    numbers: NDArray[np.uint8]
    scales: NDArray[np.float32]
    block: tuple[int, int]
    rows: _Rows
    own_dtype: str
    format: str = "FP8"

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix, (outputs, inputs)."""
        return len(self.rows), self.numbers.shape[1]

    @property
    def n_bytes(self) -> int:
        """The bytes of the numbers, without the scales."""
        n_rows, n_columns = self.shape
        return n_rows * n_columns

    def holds(self, dtype: str) -> bool:
        """Return True if `dtype` is exact; bf16 is exact if all scales are powers of two."""
        powers = np.frexp(self.scales)[0] == 0.5
        is_exact = dtype == "f32" or (dtype == "fp8" and self.own_dtype == "fp8")
        return is_exact or (dtype == "bf16" and bool(powers.all()))

    def takes(self, dtype: str) -> str:
        """Return the dtype that `make` returns for a matrix of `dtype`."""
        return dtype if dtype in ("bf16", self.own_dtype) else "f32"

    def order(self, dtype: str) -> None:
        """Return None, because columns are always in input order."""

    def unordered(self) -> StoredWeight:
        """Return the matrix itself."""
        return self

    def of_rows(self, rows: _Rows) -> StoredWeight:
        """Return the matrix of the outputs `rows`, in this order."""
        return replace(self, rows=self.rows[rows])

    def make(self, dtype: str) -> NDArray[Any]:
        """Return all numbers as `dtype`: the e4m3 number times its scale, rounded to f32 first.

        "fp8" keeps numbers and scales: (outputs, inputs / 128 * 132) bytes.
        """
        if dtype == "fp8":
            return self._blocks()
        n_rows, n_columns = self.shape
        out = np.empty((n_rows, n_columns), np.uint16 if dtype == "bf16" else np.float32)
        of_columns = np.arange(n_columns) // max(1, self.block[1])
        with np.errstate(all="ignore"):  # the engine refuses a tensor that is not finite
            for part in chunks_of_rows(n_rows, n_columns):
                rows = self.rows[part]
                values = _VALUES[self.numbers[rows]]
                values *= self.scales[rows // self.block[0]][:, of_columns]
                out[part[0] : part[-1] + 1] = to_bf16(values) if dtype == "bf16" else values
        return out

    def _blocks(self) -> NDArray[np.uint8]:
        n_rows, n_columns = self.shape
        n_blocks = n_columns // _INPUTS
        out = np.empty((n_rows, n_blocks, _SCALE_BYTES + _INPUTS), np.uint8)
        of_blocks = np.arange(n_blocks) * _INPUTS // max(1, self.block[1])
        for part in chunks_of_rows(n_rows, n_columns):
            rows = self.rows[part]
            scales = self.scales[rows // self.block[0]][:, of_blocks, None]
            made = out[part[0] : part[-1] + 1]
            made[..., :_SCALE_BYTES] = np.ascontiguousarray(scales).view(np.uint8)
            made[..., _SCALE_BYTES:] = self.numbers[rows].reshape(len(rows), n_blocks, _INPUTS)
        return out.reshape(n_rows, n_blocks * (_SCALE_BYTES + _INPUTS))


def float8_weight(parts: Parts, name: str, block: tuple[int, int]) -> Float8Weight:
    """Return the matrix of a module with the tensor weight and the scales `name`.

    block: outputs and inputs that share a scale. Raises ModelFormatError.
    """
    numbers = parts.array("weight", "F8_E4M3", None, None)
    n_out, n_in = numbers.shape
    shape = (-(-n_out // max(1, block[0])), -(-n_in // max(1, block[1])))
    scales = parts.tensor(name)
    of_all = scales.array.size == 1 and shape == (1, 1)
    of_outputs = scales.array.ndim == 1 and shape == (n_out, 1)
    parts.scales(name, *(scales.array.shape if of_all else (n_out,) if of_outputs else shape))
    of_blocks = to_f32(scales.array, scales.dtype).reshape(shape)
    is_whole = n_in % _INPUTS == 0 and (block[1] % _INPUTS == 0 or block[1] >= n_in)
    return Float8Weight(numbers, of_blocks, block, np.arange(n_out), "fp8" if is_whole else "bf16")


def read(fields: Fields) -> Scheme:
    """Return the scheme of a quantization_config of FP8. Raises ModelFormatError."""
    check_names(
        fields,
        (
            *("fmt", "activation_scheme", "weight_block_size", "scale_fmt", "expert_dtype"),
            *("modules_to_not_convert", "ignored_layers", "modules_to_convert", "dequantize"),
            *("kv_cache_scheme", "weight_per_tensor"),
        ),
    )
    fields.refuse_unless("fmt", "e4m3", "float8_e4m3fn")
    fields.refuse_unless("activation_scheme", "dynamic", "static")
    fields.refuse_unless("scale_fmt", "float", "ue8m0")
    fields.refuse_unless("expert_dtype", "fp8")
    if fields.get("weight_block_size") is None:
        return Scheme(("weight_scale", _OF_BLOCKS), _without_blocks)
    block = read_block_size(fields, "weight_block_size")
    return Scheme((_OF_BLOCKS,), lambda parts: float8_weight(parts, _OF_BLOCKS, block))


def _without_blocks(parts: Parts) -> Float8Weight:
    n_out, n_in = parts.array("weight", "F8_E4M3", None, None).shape
    name = "weight_scale" if parts.has("weight_scale") else _OF_BLOCKS
    per_tensor = parts.tensor(name).array.size == 1
    return float8_weight(parts, name, (n_out if per_tensor else 1, n_in))


def read_block_size(fields: Fields, name: str) -> tuple[int, int]:
    """Return the outputs and inputs of a block. Raises ModelFormatError."""
    value = fields.get(name)
    if (
        not isinstance(value, list)
        or len(value) != 2
        or any(type(size) is not int or not 1 <= size <= MAX_WIDTH for size in value)
    ):
        raise fields.error(name, "two whole numbers, the outputs and inputs of a block")
    return value[0], value[1]
