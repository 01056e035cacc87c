from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from quantised_files import float8, read_matrix

from pybatcher.errors import ModelFormatError

CONFIG: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
RNG = np.random.default_rng(1)
SCALE = "weight_scale_inv"


def test_every_byte_is_torchs_number() -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)[None]
    parts = {"weight": numbers, SCALE: torch.ones(1, 2)}
    stored = read_matrix(CONFIG, parts)
    np.testing.assert_array_equal(stored.make("f32"), numbers.float().numpy())
    assert stored.holds("bf16")
    bits = numbers.bfloat16().view(torch.uint16).numpy()
    finite = np.isfinite(numbers.float().numpy())
    np.testing.assert_array_equal(stored.make("bf16")[finite], bits[finite])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_need_not_be_whole(dtype: torch.dtype) -> None:
    parts, values = float8(RNG, (150, 300), (2, 3), SCALE, dtype)
    stored = read_matrix(CONFIG, parts)
    assert (stored.own_dtype, stored.shape, stored.format) == ("bf16", (150, 300), "FP8")
    assert [stored.takes(dtype) for dtype in ("f32", "bf16", "int8")] == ["f32", "bf16", "f32"]
    assert not stored.holds("bf16")
    np.testing.assert_array_equal(stored.make("f32"), values)
    rounded = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    np.testing.assert_array_equal(stored.make("bf16"), rounded)
    rows = np.array([149, 1])
    part = stored.of_rows(rows)
    assert (part.shape, part.n_bytes) == ((2, 300), 600)
    np.testing.assert_array_equal(part.make("f32"), values[rows])


@pytest.mark.parametrize(
    ("block", "own"),
    [([128, 128], "fp8"), ([64, 256], "fp8"), ([1, 1000], "fp8"), ([128, 64], "bf16")],
)
def test_blocks_of_the_engine_have_the_bytes_and_a_scale(block: list[int], own: str) -> None:
    numbers = torch.arange(150 * 384, dtype=torch.int64).remainder(127).to(torch.uint8)
    height, width = block
    scales = torch.from_numpy(RNG.uniform(0.1, 1, (-(-150 // height), -(-384 // width)))).float()
    parts = {"weight": numbers.reshape(150, 384).view(torch.float8_e4m3fn), SCALE: scales}
    stored = read_matrix({**CONFIG, "weight_block_size": block}, parts)
    assert (stored.own_dtype, stored.holds("fp8")) == (own, own == "fp8")
    assert stored.takes("fp8") == ("fp8" if own == "fp8" else "f32")
    if own == "bf16":
        return
    rows = np.array([149, 3, 64])
    made = stored.of_rows(rows).make("fp8").reshape(3, 3, 132)
    found = torch.from_numpy(made[..., 4:].copy()).view(torch.float8_e4m3fn).float().numpy()
    found *= np.ascontiguousarray(made[..., :4]).view(np.float32)
    np.testing.assert_array_equal(found.reshape(3, 384), stored.make("f32")[rows])


def test_rows_that_are_no_whole_blocks_of_the_engine_become_bf16() -> None:
    parts, _ = float8(RNG, (6, 192), (6, 1), "weight_scale")
    stored = read_matrix({**CONFIG, "weight_block_size": None}, parts)
    assert stored.own_dtype == "bf16"


def test_scales_may_be_powers_of_two_in_bytes() -> None:
    """As torch has them, from the least to the greatest."""
    exponents = torch.arange(256, dtype=torch.uint8).reshape(2, 128)
    numbers = torch.full((256, 128 * 128), 0x38, dtype=torch.uint8)  # all 1
    parts = {
        "weight": numbers.view(torch.float8_e4m3fn),
        SCALE: exponents.view(torch.float8_e8m0fnu),
    }
    stored = read_matrix(CONFIG, parts)
    assert (stored.own_dtype, stored.holds("bf16")) == ("fp8", False)  # one is no number
    found = stored.make("f32")[::128, ::128]
    expected = exponents.view(torch.float8_e8m0fnu).float().numpy()
    np.testing.assert_array_equal(found, expected)
    assert np.isnan(found[1, 127])
    scales = stored.make("fp8").reshape(256, 128, 132)[::128, :, :4]
    np.testing.assert_array_equal(np.ascontiguousarray(scales).view(np.float32)[..., 0], expected)
    finite = {**parts, SCALE: exponents.clamp(max=254).view(torch.float8_e8m0fnu)}
    assert read_matrix(CONFIG, finite).holds("bf16")


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize("shape", [(), (1,), (6,), (6, 1)])
def test_without_blocks_a_scale_is_of_all_or_of_an_output(
    name: str, shape: tuple[int, ...]
) -> None:
    parts, values = float8(RNG, (6, 40), shape, name, torch.bfloat16)
    stored = read_matrix({**CONFIG, "weight_block_size": None}, parts)
    np.testing.assert_array_equal(stored.make("f32"), values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fmt": "e5m2"}, "fmt is 'e5m2'; expected 'e4m3'"),
        ({"activation_scheme": "none"}, "activation_scheme is 'none'"),
        ({"weight_block_size": [128]}, "weight_block_size is .128.; expected two whole numbers"),
        ({"weight_block_size": [0, 128]}, "weight_block_size is"),
        ({"weight_block_size": "128"}, "weight_block_size is"),
        ({"expert_dtype": "fp4"}, "expert_dtype is 'fp4'"),
        ({"scale_fmt": "other"}, "scale_fmt is 'other'"),
        ({"sauce": 1}, "sauce is 1; expected no such field"),
    ],
)
def test_what_is_not_known_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=f"quantization_config: {message}"):
        read_matrix({**CONFIG, **changes}, {})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("weight", torch.zeros(150, 300), "found dtype f32; expected F8_E4M3"),
        (SCALE, torch.ones(3, 2), r"found shape \[3, 2\]; expected \[2, 3\]"),
        (SCALE, torch.ones(1), r"found shape \[1\]"),
        (SCALE, torch.ones(150), r"found shape \[150\]; expected \[2, 3\]"),
        (SCALE, torch.ones(2, 3, dtype=torch.int32), "found dtype I32"),
    ],
)
def test_parts_that_do_not_fit_are_refused(name: str, value: torch.Tensor, message: str) -> None:
    parts, _ = float8(RNG, (150, 300), (2, 3), SCALE)
    with pytest.raises(ModelFormatError, match=message):
        read_matrix(CONFIG, {**parts, name: value})
