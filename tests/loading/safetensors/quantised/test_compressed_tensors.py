from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from quantised_files import (
    float8,
    int_quantized,
    pack_quantized,
    packed,
    random_numbers,
    read_matrix,
)

from pybatcher.errors import ModelFormatError

INT4: dict[str, Any] = {
    "num_bits": 4,
    "type": "int",
    "symmetric": False,
    "strategy": "group",
    "group_size": 32,
    "dynamic": False,
    "observer": "minmax",
}
INT8 = {**INT4, "num_bits": 8, "strategy": "channel", "group_size": None, "symmetric": True}
FLOAT = {**INT8, "type": "float"}


def config(weights: dict[str, Any], format: str, **changes: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {"num_bits": 8}}
    made = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group},
        "format": format,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.12.2",
    }
    return {**made, **changes}


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 64), (4, -1), (8, 32)])
def test_packed_numbers_are_those_of_the_format(symmetric: bool, bits: int, group: int) -> None:
    numbers = random_numbers(
        np.random.default_rng(1), (20, 128), group, bits=bits, symmetric=symmetric
    )
    strategy = {"strategy": "channel", "group_size": None} if group < 0 else {"group_size": group}
    weights = {**INT4, "num_bits": bits, "symmetric": symmetric, **strategy}
    parts = pack_quantized(numbers, bits, symmetric=symmetric, ordered=False)
    stored = read_matrix(config(weights, "pack-quantized"), parts)
    assert (stored.shape, stored.format) == ((20, 128), "compressed-tensors")
    expected = "int8" if bits == 8 else "int4" if symmetric else "int4_zp"
    assert stored.own_dtype == expected
    np.testing.assert_array_equal(stored.make("f32"), numbers.values())


def test_inputs_need_not_fill_the_last_word_and_zeros_may_be_bytes() -> None:
    """As earlier releases saved zero points."""
    numbers = random_numbers(np.random.default_rng(1), (6, 36), -1, symmetric=False)
    weights = {**INT4, "strategy": "channel", "group_size": None}
    parts = pack_quantized(numbers, symmetric=False, ordered=False)
    parts["weight_zero_point"] = torch.from_numpy((numbers.zeros - 8).astype(np.int8))
    parts["weight_shape"] = parts["weight_shape"].int()
    stored = read_matrix(config(weights, "pack-quantized"), parts)
    assert (stored.shape, stored.own_dtype) == ((6, 36), "bf16")
    np.testing.assert_array_equal(stored.make("f32"), numbers.values())


def test_act_order_is_seen_in_g_idx() -> None:
    numbers = random_numbers(np.random.default_rng(1), (6, 96), 32, symmetric=False, ordered=True)
    parts = pack_quantized(numbers, symmetric=False, ordered=True)
    stored = read_matrix(config({**INT4, "actorder": "group"}, "pack-quantized"), parts)
    order = stored.order("int4_zp")
    assert order is not None
    np.testing.assert_array_equal(order, np.argsort(numbers.group_of, kind="stable"))
    np.testing.assert_array_equal(stored.make("f32"), numbers.values())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("strategy", ["channel", "tensor", "group"])
def test_whole_numbers_of_eight_bits(symmetric: bool, strategy: str) -> None:
    group = 32 if strategy == "group" else -1
    numbers = random_numbers(np.random.default_rng(1), (20, 64), group, bits=8, symmetric=symmetric)
    if strategy == "tensor":
        numbers.scales = numbers.scales[:1].expand(20, 1)
        numbers.zeros = np.full_like(numbers.zeros, 128 if symmetric else 131)
    parts = int_quantized(numbers, symmetric=symmetric)
    if strategy == "tensor":
        parts["weight_scale"] = parts["weight_scale"][:1, 0]
        if not symmetric:
            parts["weight_zero_point"] = parts["weight_zero_point"][:1, 0]
    weights = {**INT8, "strategy": strategy, "group_size": group, "symmetric": symmetric}
    stored = read_matrix(config(weights, "int-quantized"), parts)
    assert stored.holds("int8") == symmetric
    np.testing.assert_array_equal(stored.make("f32"), numbers.values())


@pytest.mark.parametrize(
    ("strategy", "shape"), [("channel", (150, 1)), ("tensor", (1,)), ("block", (2, 3))]
)
def test_floats_of_eight_bits(strategy: str, shape: tuple[int, ...]) -> None:
    parts, values = float8(np.random.default_rng(1), (150, 300), shape, "weight_scale")
    weights = {**FLOAT, "strategy": strategy, "block_structure": [128, 128]}
    stored = read_matrix(config(weights, "float-quantized"), parts)
    assert (stored.shape, stored.own_dtype, stored.format) == ((150, 300), "bf16", "FP8")
    np.testing.assert_array_equal(stored.make("f32"), values)


@pytest.mark.parametrize(
    ("weights", "format", "changes", "message"),
    [
        ({"num_bits": 3}, "pack-quantized", {}, "num_bits is 3; expected 4 or 8"),
        ({"num_bits": 4}, "int-quantized", {}, "num_bits is 4; expected 8"),
        ({"type": "float"}, "pack-quantized", {}, "type is 'float'; expected 'int'"),
        ({"strategy": "tensor_group"}, "pack-quantized", {}, "strategy is 'tensor_group'"),
        ({"group_size": 48}, "pack-quantized", {}, "group_size is 48"),
        ({"dynamic": True}, "pack-quantized", {}, "dynamic is True"),
        ({"sauce": 1}, "pack-quantized", {}, "weights: sauce is 1; expected no such field"),
        ({}, "nvfp4-pack-quantized", {}, "format is 'nvfp4-pack-quantized'; .*'pack-quantized'"),
        ({}, "pack-quantized", {"config_groups": {}}, "config_groups is {}; .* one group"),
        ({}, "pack-quantized", {"config_groups": {"a": {}, "b": {}}}, "one group"),
        ({}, "pack-quantized", {"transform_config": {"a": 1}}, "transform_config is"),
        ({}, "pack-quantized", {"sparsity_config": {"format": "sparse-24"}}, "format is 'spars"),
        ({}, "pack-quantized", {"quantization_status": "initialized"}, "quantization_status is"),
        ({}, "pack-quantized", {"sauce": 1}, "sauce is 1; expected no such field"),
    ],
)
def test_what_is_not_known_is_refused(
    weights: dict[str, Any], format: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFormatError, match=message):
        read_matrix(config({**INT4, **weights}, format, **changes), {})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weight_shape", torch.tensor([6, 100]), r"'m.weight_shape': expected \[6, 96\]"),
        ("weight_shape", torch.tensor([5, 96]), r"expected \[6, 96\]"),
        ("weight_shape", torch.zeros(3).long(), r"found shape \[3\]; expected \[2\]"),
        ("weight_scale", torch.zeros(6, 2), r"found shape \[6, 2\]; expected \[6, 3\]"),
        ("weight_scale", torch.zeros(1), "expected .6, 3."),
        ("weight_zero_point", torch.zeros(1, 3), "found dtype f32; expected I32"),
        (
            "weight_zero_point",
            torch.full((6, 3), 8, dtype=torch.int8),
            "whole numbers from -8 to 7",
        ),
        ("weight_packed", torch.zeros(6, 12), "found dtype f32; expected I32"),
    ],
)
def test_parts_that_do_not_fit_are_refused(name: str, value: torch.Tensor, message: str) -> None:
    numbers = random_numbers(np.random.default_rng(1), (6, 96), 32, symmetric=False)
    parts = pack_quantized(numbers, symmetric=False, ordered=False)
    with pytest.raises(ModelFormatError, match=message):
        read_matrix(config(INT4, "pack-quantized"), {**parts, name: value})


def test_one_scale_for_all_is_a_float() -> None:
    """Bits of whole numbers, and bytes of truth values, were scales."""
    numbers = random_numbers(np.random.default_rng(1), (20, 64), -1, bits=8, symmetric=True)
    parts = int_quantized(numbers, symmetric=True)
    weights = {**INT8, "strategy": "tensor", "group_size": None, "symmetric": True}
    with pytest.raises(ModelFormatError, match="found dtype I64; expected one of f16, bf16, f32"):
        read_matrix(config(weights, "int-quantized"), {**parts, "weight_scale": torch.tensor([1])})


def test_words_are_filled_from_the_lowest_bits() -> None:
    """The writer of these tests, by hand: 0x87654321 holds 1 to 8."""
    word = packed(np.arange(1, 9)[None], 4)
    assert word.tolist() == [[0x87654321 - 2**32]]
