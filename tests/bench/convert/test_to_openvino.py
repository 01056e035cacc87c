from __future__ import annotations

import pytest

from bench.convert.shapes import SHAPES
from bench.convert.to_openvino import group_size


@pytest.mark.parametrize(
    ("shape", "size"), [("llama-3.2-1b", 128), ("qwen2.5-0.5b", 128), ("smollm2-135m", 64)]
)
def test_groups_divide_the_rows(shape: str, size: int) -> None:
    assert group_size(SHAPES[shape]) == size
