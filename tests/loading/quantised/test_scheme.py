"""What all methods share: which one it is, and which modules have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from quantised_files import awq, module, random_numbers

from pybatcher.errors import ModelFormatError
from pybatcher.loading.fields import Fields
from pybatcher.loading.quantised import read_scheme, with_matrices

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
