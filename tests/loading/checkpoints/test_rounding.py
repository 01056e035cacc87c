from __future__ import annotations

import numpy as np
import pytest
import torch
from block_values import block_values

from pybatcher.loading.checkpoints.rounding import to_bf16, to_int8


def test_bf16_is_torchs() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal(1000).astype(np.float32)
    values[:6] = [0, -0.0, np.inf, -np.inf, 3.4e38, 1e-40]
    np.testing.assert_array_equal(
        to_bf16(values), torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    )
    assert np.isnan((to_bf16(np.array([np.nan], np.float32)).astype(np.uint32) << 16).view("f4"))


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_int8_is_within_half_a_step(size: float) -> None:
    values = (np.random.default_rng(1).standard_normal((3, 96)) * size).astype(np.float32)
    values[0, :32] = 0
    made = block_values(to_int8(values), "int8")
    steps = np.abs(values).reshape(3, 3, 32).max(axis=2).repeat(32, axis=1) / 127
    assert (np.abs(made - values) <= steps * 0.51).all()


def test_int8_of_no_number_shows_it() -> None:
    with np.errstate(all="ignore"):
        for bad in (np.nan, np.inf):
            values = np.ones((1, 32), np.float32)
            values[0, 3] = bad
            assert not np.isfinite(block_values(to_int8(values), "int8")).any()
