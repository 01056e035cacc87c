from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from quantised_files import awq, random_numbers, read_matrix

from pybatcher.errors import ModelFormatError

CONFIG: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 64,
    "zero_point": True,
    "version": "gemm",
    "modules_to_not_convert": None,
}
NUMBERS = random_numbers(np.random.default_rng(2), (24, 128), 64, symmetric=False)


@pytest.mark.parametrize(
    "config", [CONFIG, {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"}]
)
def test_numbers_are_those_of_the_format(config: dict[str, Any]) -> None:
    stored = read_matrix(config, awq(NUMBERS))
    assert (stored.own_dtype, stored.shape, stored.format) == ("int4_zp", (24, 128), "AWQ")
    np.testing.assert_array_equal(stored.make("f32"), NUMBERS.values())
    rows = np.array([17, 3, 8])
    np.testing.assert_array_equal(stored.of_rows(rows).make("f32"), NUMBERS.values()[rows])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": 3}, "bits is 3; expected 4"),
        ({"zero_point": False}, "zero_point is False; expected True"),
        ({"version": "gemv"}, "version is 'gemv'; expected 'gemm' or 'GEMM'"),
        ({"format": "llm-awq"}, "format is 'llm-awq'"),
        ({"group_size": 100}, "group_size is 100"),
        ({"desc_act": True}, "desc_act is True; expected no such field"),
    ],
)
def test_what_is_not_known_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=f"quantization_config: {message}"):
        read_matrix({**CONFIG, **changes}, awq(NUMBERS))


@pytest.mark.parametrize(
    ("name", "shape"), [("qzeros", (2, 2)), ("scales", (1, 24)), ("qweight", (128, 4))]
)
def test_parts_that_do_not_fit_are_refused(name: str, shape: tuple[int, int]) -> None:
    dtype = torch.float16 if name == "scales" else torch.int32
    with pytest.raises(ModelFormatError, match="found shape"):
        read_matrix(CONFIG, {**awq(NUMBERS), name: torch.zeros(shape, dtype=dtype)})
