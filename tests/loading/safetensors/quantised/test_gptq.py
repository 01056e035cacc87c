from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from quantised_files import Numbers, Parts, gptq, random_numbers, read_matrix

from pybatcher.errors import ModelFormatError

CONFIG: dict[str, Any] = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 32,
    "desc_act": False,
    "sym": True,
    "damp_percent": 0.01,
    "meta": {"quantizer": ["gptqmodel:1.0"]},
}


def numbers(**how: Any) -> Numbers:
    rng = np.random.default_rng(1)
    return random_numbers(rng, (24, 96), 32, **{"symmetric": False, **how})


@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("field", ["checkpoint_format", "format"])
def test_zero_points_lie_as_the_format_says(version: str, field: str) -> None:
    found = numbers()
    stored = read_matrix({**CONFIG, field: version}, gptq(found, v2=version == "gptq_v2"))
    assert (stored.own_dtype, stored.shape, stored.format) == ("int4_zp", (24, 96), "GPTQ")
    np.testing.assert_array_equal(stored.make("f32"), found.values())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("g_idx", [False, True])
def test_without_g_idx_groups_follow_each_other(bits: int, g_idx: bool) -> None:
    found = numbers(bits=bits, symmetric=True)
    stored = read_matrix({**CONFIG, "bits": bits}, gptq(found, bits, g_idx=g_idx))
    assert stored.own_dtype == ("int4" if bits == 4 else "int8")
    np.testing.assert_array_equal(stored.make("f32"), found.values())


def test_act_order_is_seen_in_g_idx() -> None:
    found = numbers(ordered=True)
    stored = read_matrix({**CONFIG, "desc_act": True}, gptq(found))
    assert stored.own_dtype == "int4_zp"
    assert stored.holds("int4_zp")
    assert stored.order("int4_zp") is not None
    np.testing.assert_array_equal(stored.make("f32"), found.values())


def test_the_last_group_may_be_shorter() -> None:
    rng = np.random.default_rng(1)
    found = random_numbers(rng, (8, 96), 64, symmetric=False)
    stored = read_matrix({**CONFIG, "group_size": 64}, gptq(found))
    np.testing.assert_array_equal(stored.make("f32"), found.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 3}, "bits is 3; expected 4 or 8"),
        ({"bits": "4"}, "bits is '4'; expected a whole number"),
        ({"group_size": 16}, "group_size is 16; expected -1, or a multiple of 32"),
        ({"group_size": 0}, "group_size is 0"),
        ({"group_size": None}, "group_size is None"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'; .*'gptq_v2'"),
        ({"format": "bitblas"}, "format is 'bitblas'"),
        ({"is_marlin_format": True}, "is_marlin_format is True"),
        ({"pack_dtype": "int16"}, "pack_dtype is 'int16'"),
        ({"rotation": "hadamard"}, "rotation is 'hadamard'"),
        ({"dynamic": {"-:.*": {}}}, "dynamic is {"),
        ({"sauce": 1}, "sauce is 1; expected no such field; .*dtype='int8'.*GGUF"),
    ],
)
def test_what_is_not_known_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=f"config.json: quantization_config: {message}"):
        read_matrix({**CONFIG, **changes}, gptq(numbers()))


def other(parts: Parts, name: str, value: torch.Tensor) -> Parts:
    return {**parts, name: value}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("qweight", torch.zeros(12, 24), "'m.qweight': found dtype f32; expected I32"),
        ("qweight", torch.zeros(12, dtype=torch.int32), "found shape .12.; expected .any, any."),
        ("scales", torch.zeros(2, 24), r"'m.scales': found shape \[2, 24\]; expected \[3, 24\]"),
        ("scales", torch.zeros(3, 24, dtype=torch.int32), "found dtype I32; expected one of f16"),
        ("qzeros", torch.zeros(3, 24, dtype=torch.int32), r"'m.qzeros': .*expected \[3, 3\]"),
        ("g_idx", torch.zeros(95, dtype=torch.int32), r"'m.g_idx': .*expected \[96\]"),
        ("g_idx", torch.full((96,), 3, dtype=torch.int32), "'m.g_idx': expected groups from 0"),
        ("g_idx", torch.full((96,), -1, dtype=torch.int32), "'m.g_idx': expected groups from 0"),
    ],
)
def test_parts_that_do_not_fit_are_refused(name: str, value: torch.Tensor, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        read_matrix(CONFIG, other(gptq(numbers()), name, value))


@pytest.mark.parametrize("name", ["scales", "qzeros"])
def test_parts_that_are_missing_are_named(name: str) -> None:
    parts = gptq(numbers())
    del parts[name]
    with pytest.raises(ModelFormatError, match=f"a checkpoint: tensor m.{name} is missing"):
        read_matrix(CONFIG, parts)
