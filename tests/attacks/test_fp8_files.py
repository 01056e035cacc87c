"""FP8 checkpoints whose tensors are damaged, opened as users open them.

A scale or a number that is none, a tensor that is missing, of another type or shape: a typed error
that names the tensor. A scale of any other value is one: it answers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quantised_files import Floats, Parts, float8, write_quantised
from safetensors.torch import load_file, save_file

from pybatcher import BlockingBatcher
from pybatcher.errors import ConfigError, ModelFormatError
from pybatcher.testing.checkpoints import make_checkpoint

SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
pytestmark = pytest.mark.filterwarnings("ignore:.*rounded to int8")
MODULE = "model.layers.0.mlp.up_proj"
_WEIGHTS = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
CHANNELS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {**_WEIGHTS, "strategy": "channel"}}},
}
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
FORMS = {"blocks": (BLOCKS, "weight_scale_inv"), "channels": (CHANNELS, "weight_scale")}
DTYPES = ("auto", "f32", "bf16", "int8")


@pytest.fixture(scope="module", params=FORMS)
def whole(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A checkpoint, and the name of its scales."""
    config, scale = FORMS[request.param]
    root = tmp_path_factory.mktemp(request.param)

    def make(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Floats]:
        blocks = (shape[0] // 128 or 1, shape[1] // 128)
        return float8(rng, shape, (shape[0], 1) if config is CHANNELS else blocks, scale)

    directory = make_checkpoint(root / "llama", "llama", **SHAPE)
    return write_quantised(directory, root / "model", config, make) / "quantised", scale


@pytest.fixture
def change(whole: tuple[Path, str]) -> Any:
    """A function that puts another tensor in the place of one, or none; what was, is at the end."""
    path = whole[0] / "model.safetensors"
    before = load_file(path)

    def put(part: str, make: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        tensors = dict(before)
        made = make(tensors.pop(f"{MODULE}.{part}").clone())
        if made is not None:
            tensors[f"{MODULE}.{part}"] = made.contiguous()
        save_file(tensors, path)

    yield put
    save_file(before, path)


def answer(path: Path, dtype: str) -> list[int]:
    with BlockingBatcher(path, dtype=dtype, n_ctx=64, n_parallel=1, n_threads=1) as batcher:
        return list(batcher.generate([5, 6, 7], max_tokens=4, temperature=0).token_ids)


def refused(path: Path, dtype: str) -> str:
    with pytest.raises(ModelFormatError) as caught:
        answer(path, dtype)
    assert len(str(caught.value)) < 2000
    return str(caught.value)


def last(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def make(scales: torch.Tensor) -> torch.Tensor:
        scales.view(-1)[-1] = value
        return scales

    return make


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
def test_scales_with_which_numbers_are_not_finite(
    value: float, whole: tuple[Path, str], change: Any
) -> None:
    path, scale = whole
    change(scale, last(value))
    for dtype in DTYPES:
        assert "tensor 'layers.0.up.weight' holds" in refused(path, dtype)


@pytest.mark.parametrize("value", [-0.01, -0.0, 0.0, 1e-45, 1e-30])
def test_any_other_scale_is_one(value: float, whole: tuple[Path, str], change: Any) -> None:
    path, scale = whole
    change(scale, last(value))
    for dtype in DTYPES:
        assert len(answer(path, dtype)) == 4


def test_scales_that_are_powers_of_two(whole: tuple[Path, str], change: Any) -> None:
    path, scale = whole
    change(scale, lambda scales: scales.to(torch.float8_e8m0fnu))
    for dtype in DTYPES:
        assert len(answer(path, dtype)) == 4


def test_powers_of_two_that_are_no_numbers(whole: tuple[Path, str], change: Any) -> None:
    path, scale = whole
    change(
        scale,
        lambda scales: torch.full(scales.shape, 255, dtype=torch.uint8).view(torch.float8_e8m0fnu),
    )
    for dtype in DTYPES:
        assert "tensor 'layers.0.up.weight' holds nan" in refused(path, dtype)


@pytest.mark.parametrize(
    "make",
    [
        lambda scales: scales[None],
        lambda scales: scales.flatten()[:-1],
        lambda scales: torch.cat([scales, scales]),
        lambda scales: scales.flatten()[0],
        lambda scales: scales[:0],
        lambda scales: scales.int(),
        lambda scales: scales.double(),
        lambda scales: scales.to(torch.float8_e4m3fn),
        lambda scales: torch.full(scales.shape, 120, dtype=torch.uint8),
    ],
)
def test_scales_of_other_shapes_and_types(
    make: Callable[[torch.Tensor], torch.Tensor], whole: tuple[Path, str], change: Any
) -> None:
    path, scale = whole
    change(scale, make)
    for dtype in DTYPES:
        assert f"tensor '{MODULE}.{scale}': found" in refused(path, dtype)


def test_tensors_that_are_missing(whole: tuple[Path, str], change: Any) -> None:
    path, scale = whole
    change(scale, lambda _: None)
    for dtype in DTYPES:
        said = refused(path, dtype)
        assert f"tensor '{MODULE}.weight' without tensor {MODULE}.{scale}: found" in said
    change("weight", lambda _: None)
    assert f"tensor {MODULE}.weight is missing" in refused(path, "auto")


@pytest.mark.parametrize(
    "make",
    [
        lambda weight: weight.float(),
        lambda weight: weight.bfloat16(),
        lambda weight: weight.float().to(torch.float8_e5m2),
        lambda weight: weight.view(torch.uint8),
        lambda weight: weight[:, :-1],
        lambda weight: weight[:128, :127],
        lambda weight: weight[None],
        lambda weight: weight.flatten(),
    ],
)
def test_numbers_of_other_shapes_and_types(
    make: Callable[[torch.Tensor], torch.Tensor], whole: tuple[Path, str], change: Any
) -> None:
    path, scale = whole
    change("weight", make)
    said = refused(path, "auto")
    assert f"tensor '{MODULE}.weight': found" in said or f"'{MODULE}.{scale}': found" in said


def test_bytes_that_are_no_numbers(whole: tuple[Path, str], change: Any) -> None:
    def make(weight: torch.Tensor) -> torch.Tensor:
        weight.view(torch.uint8)[7, 9] = 0x7F
        return weight

    path, _ = whole
    change("weight", make)
    for dtype in DTYPES:
        assert "'layers.0.up.weight' holds nan at [7, 9]" in refused(path, dtype)


@pytest.mark.parametrize("dtype", ["fp8", "FP8", "iq4_nl", "f8_e4m3", "", 8, None])
def test_fp8_is_no_dtype_to_ask_for(dtype: Any, whole: tuple[Path, str]) -> None:
    with pytest.raises(ConfigError, match=r"dtype is .*; it must be one of 'auto', 'f32'"):
        answer(whole[0], dtype)
