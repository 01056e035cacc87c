"""compressed-tensors: integers and FP8, as llm-compressor saves them.

A module has weight_scale (outputs, groups), with one column if all inputs share a scale, or with
one number for all. The other tensors depend on the format:
  pack-quantized   weight_packed, int32 (outputs, inputs * bits / 32), the first input in the
                   lowest bits, each number plus 2**(bits - 1); weight_shape; weight_zero_point,
                   packed so along the outputs, or int8; weight_g_idx (inputs)
  int-quantized    weight, int8 (outputs, inputs); weight_zero_point, int8
  float-quantized  weight, e4m3 (outputs, inputs); weight_scale also of blocks
The scales of activations are ignored, because the engine quantises activations in its own way.
https://github.com/vllm-project/compressed-tensors
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.fields import Fields, shown
from .float8 import Float8Weight, float8_weight, read_block_size
from .grouped_numbers import GroupedNumbers, grouped_numbers
from .parts import Parts, rows_of_packed, to_f32
from .scheme import WAY_OUT, Scheme, check_names, read_group_size

__all__ = ["read"]

_PACKED, _WHOLE, _FLOAT = "pack-quantized", "int-quantized", "float-quantized"
_NAME = "compressed-tensors"
_Zeros = Callable[[NDArray[np.int64]], NDArray[np.int16]]


def read(fields: Fields) -> Scheme:
    """Return the scheme of a quantization_config of compressed-tensors.

    The tensors show which modules are quantised, so that `targets` and `ignore` are not read.
    Raises ModelFormatError.
    """
    check_names(
        fields,
        (
            *("config_groups", "format", "global_compression_ratio", "ignore", "kv_cache_scheme"),
            *("quantization_status", "run_compressed", "sparsity_config", "transform_config"),
            "version",
        ),
    )
    fields.refuse_unless("quantization_status", "compressed", "frozen")
    fields.refuse_unless("transform_config", {})
    sparsity = fields.child("sparsity_config")
    sparsity.refuse_unless("format", "dense")
    groups = fields.child("config_groups")
    if len(groups.names()) != 1:
        raise fields.error("config_groups", f"an object with one group; {WAY_OUT}")
    group = groups.child(groups.names()[0])
    check_names(group, ("targets", "weights", "input_activations", "output_activations", "format"))
    format_fields = group if "format" in group else fields
    weights = group.child("weights")
    format_fields.refuse_unless("format", _PACKED, _WHOLE, _FLOAT)
    return _scheme(format_fields.text("format"), weights)


def _scheme(format: str, weights: Fields) -> Scheme:
    check_names(
        weights,
        (
            *("num_bits", "type", "symmetric", "group_size", "strategy", "block_structure"),
            *("dynamic", "actorder", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"),
        ),
    )
    weights.refuse_unless("type", "float" if format == _FLOAT else "int")
    weights.refuse_unless("dynamic", False)
    bits = weights.integer("num_bits", 1, 32)
    if bits not in ((4, 8) if format == _PACKED else (8,)):
        raise weights.error("num_bits", "4 or 8" if format == _PACKED else "8")
    strategy = weights.text("strategy")
    strategies = ("tensor", "channel", "block" if format == _FLOAT else "group")
    weights.refuse_unless("strategy", *strategies)
    is_symmetric = weights.boolean("symmetric", True)
    if format == _FLOAT:
        weights.refuse_unless("symmetric", True)
        block = read_block_size(weights, "block_structure") if strategy == "block" else None
        return Scheme(("weight_scale",), lambda parts: _floats(parts, strategy, block))
    size = read_group_size(weights, "group_size") if strategy == "group" else -1

    def matrix(parts: Parts) -> GroupedNumbers:
        read_matrix = _packed if format == _PACKED else _whole
        return read_matrix(parts, bits, size, is_symmetric)

    return Scheme(("weight_scale",), matrix)


def _floats(parts: Parts, strategy: str, block: tuple[int, int] | None) -> Float8Weight:
    weight = parts.array("weight", "F8_E4M3", None, None)
    n_out, n_in = weight.shape
    if block is None:
        block = (1, n_in) if strategy == "channel" else (n_out, n_in)
    return float8_weight(parts, "weight_scale", block)


def _packed(parts: Parts, bits: int, size: int, is_symmetric: bool) -> GroupedNumbers:
    per_word = 32 // bits
    packed: NDArray[np.int32] = parts.array("weight_packed", "I32", None, None)
    n_out = packed.shape[0]
    n_in = _stored_width(parts, n_out, packed.shape[1] * per_word, per_word)
    mask = np.uint32((1 << bits) - 1)

    def numbers(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        words = packed[rows].view(np.uint32)
        out = np.empty((*words.shape, per_word), np.uint8)
        for place in range(per_word):
            out[..., place] = words >> np.uint32(bits * place) & mask
        return out.reshape(len(rows), -1)[:, :n_in]

    return _grouped(parts, bits, size, is_symmetric, (n_out, n_in), numbers)


def _stored_width(parts: Parts, n_out: int, packed_width: int, per_word: int) -> int:
    """Return the number of inputs, which may leave a part of the last word unused."""
    name = "weight_shape"
    dtype = "I32" if parts.tensor(name).dtype == "I32" else "I64"
    shape = [int(size) for size in parts.array(name, dtype, 2)]
    if shape[0] != n_out or not packed_width - per_word < shape[1] <= packed_width:
        raise parts.error(
            name, f"[{n_out}, {packed_width}], by weight_packed (it holds {shown(shape)})"
        )
    return shape[1]


def _whole(parts: Parts, bits: int, size: int, is_symmetric: bool) -> GroupedNumbers:
    weight = parts.array("weight", "I8", None, None)
    n_out, n_in = weight.shape

    def numbers(rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        return weight[rows].view(np.uint8) ^ np.uint8(128)

    return _grouped(parts, bits, size, is_symmetric, (n_out, n_in), numbers)


def _grouped(
    parts: Parts,
    bits: int,
    size: int,
    is_symmetric: bool,
    shape: tuple[int, int],
    numbers: Callable[[NDArray[np.int64]], NDArray[np.uint8]],
) -> GroupedNumbers:
    n_out, n_in = shape
    size = max(n_in, 1) if size < 0 else size
    n_groups = -(-n_in // size)
    scales = parts.tensor("weight_scale")
    of_all = scales.array.size == 1 and n_out > 1 and n_groups == 1
    parts.scales("weight_scale", *(scales.array.shape if of_all else (n_out, n_groups)))

    def scales_of(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        found = scales.array.reshape(1, 1).repeat(len(rows), 0) if of_all else scales.array[rows]
        return to_f32(found, scales.dtype)

    return grouped_numbers(
        _NAME,
        bits,
        parts.n_bytes("weight_packed", "weight", "weight_scale", "weight_zero_point"),
        shape,
        parts.group_of("weight_g_idx", n_in, n_groups, size),
        numbers,
        scales_of,
        _zeros(parts, bits, n_out, n_groups, is_symmetric, of_all),
        scales.dtype == "f16",
    )


def _zeros(
    parts: Parts, bits: int, n_out: int, n_groups: int, is_symmetric: bool, of_all: bool
) -> _Zeros:
    middle = 1 << (bits - 1)
    name = "weight_zero_point"
    if is_symmetric:
        return lambda rows: np.full((len(rows), n_groups), middle, np.int16)
    if parts.tensor(name).dtype == "I8":
        stored = parts.array(name, "I8", *((1,) if of_all else (n_out, n_groups)))
        stored = stored.reshape(-1, n_groups)
        if stored.size and not -middle <= stored.min() <= stored.max() < middle:
            raise parts.error(name, f"whole numbers from {-middle} to {middle - 1}")
        return lambda rows: stored[rows * (not of_all)].astype(np.int16) + np.int16(middle)
    per_word = 32 // bits
    packed = parts.array(name, "I32", -(-n_out // per_word), n_groups)
    places = np.arange(per_word)
    return lambda rows: rows_of_packed(packed.T, rows, bits, places).astype(np.int16)
