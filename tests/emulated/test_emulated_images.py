"""Rows of images on an emulated GPU: transformers' tokens, in chunks of any size."""

from __future__ import annotations

from pathlib import Path

import pytest
from image_rows import generate, load, of_transformers

from pybatcher.testing.checkpoints import make_checkpoint


def test_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "qwen3", "qwen3")
    engine = load(checkpoint)
    assert engine.description()["device"].startswith("cuda")
    _, expected = of_transformers(checkpoint)
    assert [generate(engine, chunk) for chunk in (1, 7, 64)] == [expected] * 3
    engine.close()


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_chunks_change_no_bit(dtype: str, tmp_path: Path) -> None:
    engine = load(make_checkpoint(tmp_path / "qwen3", "qwen3"), dtype=dtype)
    assert generate(engine, 7) == generate(engine, 64)
    engine.close()
