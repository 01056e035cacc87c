"""What all methods share: which one it is, and which modules have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from quantised_files import awq, float8, module, pack_quantized, random_numbers

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.safetensors.quantised import read_scheme, with_matrices

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}


def fields(config: Any) -> Fields:
    return Fields({"quantization_config": config}, "config.json")


def test_most_checkpoints_have_none() -> None:
    assert read_scheme(Fields({}, "config.json")) is None
    assert read_scheme(fields(None)) is None


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "quant_method is missing; expected one of 'gptq', 'awq', 'compressed-tensors', 'fp8'"),
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'; .*dtype='int8'.*GGUF"),
        ({"quant_method": ["gptq"]}, "quant_method is"),
        (4, "config.json: quantization_config is 4; expected an object"),
    ],
)
def test_other_methods_are_refused_by_name(config: Any, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        read_scheme(fields(config))


def test_modules_without_its_tensors_stay_as_they_are() -> None:
    numbers = random_numbers(np.random.default_rng(1), (8, 64), 64, symmetric=False)
    plain = module({"weight": torch.ones(3, 4)}, "plain")
    tensors = {**module(awq(numbers), "a.b"), **plain}
    scheme = read_scheme(fields(AWQ))
    assert scheme is not None
    made = with_matrices(tensors, scheme, "here")
    assert {name for name in made if name.endswith(".weight")} == {"a.b.weight", "plain.weight"}
    assert made["plain.weight"] is plain["plain.weight"]
    weight = made["a.b.weight"]
    assert (weight.dtype, weight.shape) == ("AWQ", (8, 64))
    assert weight.n_bytes == 8 * 64 // 2 + 8 * 2 + 4
    assert "a.b.qweight" in weight.source


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "a.b.weight_scale_inv"),
        ({"quant_method": "fp8"}, "a.b.weight_scale or a.b.weight_scale_inv"),
    ],
)
def test_numbers_without_scales_say_which_tensor_is_missing(
    config: dict[str, Any], missing: str
) -> None:
    """They are refused where the model has the matrix, by a message that begins so."""
    parts, _ = float8(np.random.default_rng(1), (4, 128), (1, 1), "weight_scale")
    tensors = module({"weight": parts["weight"]}, "a.b")
    tensors |= module({"weight": torch.ones(3, 4)}, "plain")
    scheme = read_scheme(fields(config))
    assert scheme is not None
    made = with_matrices(tensors, scheme, "here")
    assert made["a.b.weight"].source == f"file: tensor 'a.b.weight' without tensor {missing}"
    assert made["a.b.weight"].stored is None
    assert made["plain.weight"] is tensors["plain.weight"]


def test_messages_about_a_matrix_name_its_numbers() -> None:
    parts, _ = float8(np.random.default_rng(1), (4, 128), (1, 1), "weight_scale")
    scheme = read_scheme(fields({"quant_method": "fp8"}))
    assert scheme is not None
    made = with_matrices(module(parts, "a.b"), scheme, "here")
    assert made["a.b.weight"].source.endswith("tensor 'a.b.weight'")
    group = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    scheme = read_scheme(fields({**config, "config_groups": {"all": group}}))
    assert scheme is not None
    numbers = random_numbers(np.random.default_rng(1), (8, 64), 32, symmetric=True)
    packed = pack_quantized(numbers, symmetric=True, ordered=False)
    made = with_matrices(module(packed, "a.b"), scheme, "here")
    assert made["a.b.weight"].source.endswith("tensor 'a.b.weight_packed'")
