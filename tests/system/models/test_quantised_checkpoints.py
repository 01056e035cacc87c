"""Checkpoints of GPTQ, AWQ, compressed-tensors and FP8: they keep their numbers.

The oracle is the same model as plain numbers, dequantised by the formulas of the formats.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from quantised_files import (
    LINEAR,
    Floats,
    Make,
    Parts,
    awq,
    float8,
    gptq,
    int_quantized,
    pack_quantized,
    random_numbers,
    write_quantised,
)
from safetensors.torch import load_file

from pybatcher.engine import Engine
from pybatcher.errors import ModelFormatError
from pybatcher.testing.checkpoints import make_checkpoint

SHAPE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 2,
}
PROMPT = list(range(5, 45))
SCALE = "weight_scale_inv"


@dataclass
class Case:
    """A format, what it loads as, and how far from the exact logits."""

    config: dict[str, Any]
    make: Make
    dtype: str
    tolerance: float = 0.03
    warns: str = ""


def of_numbers(
    write: Callable[..., Parts], options: dict[str, Any], *group: int, **how: Any
) -> Make:
    def make(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Floats]:
        numbers = random_numbers(rng, shape, *group, **how)
        return write(numbers, **options), numbers.values()

    return make


def gptq_case(group: int, dtype: str, **how: Any) -> Case:
    version = how.pop("format", "gptq")
    bits = how.get("bits", 4)
    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": bool(how.get("ordered")),
        "sym": how["symmetric"],
        "checkpoint_format": version,
    }
    options = {"bits": bits, "v2": version == "gptq_v2"}
    warns = "rounded to int8: 14 of GPTQ" if how.get("ordered") == "unevenly" else ""
    return Case(config, of_numbers(gptq, options, group, **how), dtype, warns=warns)


def awq_case(group: int) -> Case:
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True}
    make = of_numbers(awq, {}, group, symmetric=False)
    return Case({**config, "version": "gemm"}, make, "int4_zp")


def compressed(format: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def packed_case(
    group: int, dtype: str, *, bits: int = 4, ordered: bool = False, **how: Any
) -> Case:
    config = compressed(
        "pack-quantized",
        num_bits=bits,
        type="int",
        symmetric=how["symmetric"],
        strategy="channel" if group < 0 else "group",
        group_size=None if group < 0 else group,
        actorder="group" if ordered else None,
    )
    options = {"bits": bits, "symmetric": how["symmetric"], "ordered": ordered}
    how = {"dtype": torch.bfloat16, "bits": bits, "ordered": ordered, **how}
    return Case(config, of_numbers(pack_quantized, options, group, **how), dtype)


def whole_case(*, symmetric: bool, dtype: torch.dtype, warns: str) -> Case:
    config = compressed(
        "int-quantized", num_bits=8, type="int", symmetric=symmetric, strategy="channel"
    )
    how = {"symmetric": symmetric, "bits": 8, "dtype": dtype}
    make = of_numbers(int_quantized, {"symmetric": symmetric}, -1, **how)
    return Case(config, make, "int8", warns=warns)


def float_case(name: str, config: dict[str, Any]) -> Case:
    """name: "block", "channel" or "tensor": what has a scale of its own."""
    is_block = name == "block"

    def make(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Floats]:
        blocks = (-(-shape[0] // 128), -(-shape[1] // 128))
        of = {"block": blocks, "channel": (shape[0], 1), "tensor": (1,)}[name]
        scale = SCALE if is_block else "weight_scale"
        return float8(rng, shape, of, scale, torch.float32 if is_block else torch.bfloat16)

    return Case(config, make, "fp8")


BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
FLOATS = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
CASES = {
    "gptq 32": gptq_case(32, "int4_zp", symmetric=False),
    "gptq 64 v2": gptq_case(64, "int4_zp", symmetric=False, format="gptq_v2"),
    "gptq 128 symmetric": gptq_case(128, "int4", symmetric=True),
    "gptq of all inputs": gptq_case(-1, "int4", symmetric=True, format="gptq_v2"),
    "gptq act-order": gptq_case(32, "int4", symmetric=True, ordered=True),
    "gptq act-order with zeros": gptq_case(64, "int4_zp", symmetric=False, ordered="equally"),
    "gptq act-order of 8 bits": gptq_case(32, "int8", symmetric=True, ordered=True, bits=8),
    "gptq uneven groups": gptq_case(32, "int8", symmetric=True, ordered="unevenly"),
    "gptq 8 bits": gptq_case(128, "int8", symmetric=True, bits=8),
    "awq 128": awq_case(128),
    "awq 32": awq_case(32),
    "packed 32": packed_case(32, "int4", symmetric=True),
    "packed 128 with zeros": packed_case(128, "int4_zp", symmetric=False),
    "packed channels": packed_case(-1, "int4", symmetric=True),
    "packed act-order": packed_case(32, "int4", symmetric=True, ordered=True),
    "packed 8 bits": packed_case(64, "int8", symmetric=True, bits=8),
    "int8 channels": whole_case(symmetric=True, dtype=torch.bfloat16, warns=""),
    "int8 scales of f32": whole_case(symmetric=True, dtype=torch.float32, warns="to int8"),
    "int8 with zeros": whole_case(symmetric=False, dtype=torch.bfloat16, warns="to int8"),
    "fp8 blocks": float_case("block", {**BLOCKS, "weight_block_size": [128, 128]}),
    "fp8 tensors": float_case("tensor", {**BLOCKS, "weight_block_size": None}),
    "float channels": float_case(
        "channel", compressed("float-quantized", **FLOATS, strategy="channel")
    ),
    "float tensors": float_case(
        "tensor", compressed("float-quantized", **FLOATS, strategy="tensor")
    ),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("hf") / "llama", "llama", **SHAPE)


def load(path: Path, **options: Any) -> Engine:
    return Engine.load(path, n_ctx=128, n_parallel=2, n_threads=2, **options)


def logits(path: Path, chunks: tuple[int, ...] = (len(PROMPT),), **options: Any) -> NDArray[Any]:
    """Return the logits after PROMPT, computed in chunks, and after two tokens more."""
    engine = load(path, **options)
    seq_id = engine.seq_new()
    first = 0
    for size in chunks:
        row = engine.prefill_chunk(seq_id, PROMPT[first : first + size], logits=True)
        first += size
    rows = [row, *(engine.prefill_chunk(seq_id, [t], logits=True) for t in (9, 300))]
    engine.close()
    return np.array(rows)


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_of_the_format(name: str, directory: Path, tmp_path: Path) -> None:
    """In f32 bit for bit; with dtype="auto" but for rounding activations to int8."""
    case = CASES[name]
    root = write_quantised(directory, tmp_path / "model", case.config, case.make)
    exact = logits(root / "plain", dtype="f32")
    np.testing.assert_array_equal(logits(root / "quantised", dtype="f32"), exact)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = logits(root / "quantised", kv_dtype="f32")
        engine = load(root / "quantised")
    messages = [str(warning.message) for warning in caught]
    assert all(case.warns in message for message in messages)
    assert bool(messages) == bool(case.warns)
    assert engine.description()["dtype"] == case.dtype
    assert engine.description()["dtypes"] == f"{case.dtype}, f32"
    engine.close()
    error = np.linalg.norm(made - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert 0 < error.max() < case.tolerance


@pytest.mark.parametrize(
    "name",
    ["gptq 32", "awq 128", "packed 128 with zeros", "gptq act-order with zeros", "fp8 blocks"],
)
def test_chunks_and_the_cache_change_no_bit(name: str, directory: Path, tmp_path: Path) -> None:
    case = CASES[name]
    path = write_quantised(directory, tmp_path / "model", case.config, case.make) / "quantised"
    at_once = logits(path)
    cache = str(tmp_path / "cache")
    for chunks in ((1, 39), (17, 20, 3), (1,) * 40):
        np.testing.assert_array_equal(logits(path, chunks, weights_cache=cache), at_once)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_the_same_file_read_in_another_way_is_packed_anew(directory: Path, tmp_path: Path) -> None:
    """Zero points less one, or as they are: only config.json says."""
    case = CASES["gptq 32"]
    path = write_quantised(directory, tmp_path / "model", case.config, case.make) / "quantised"
    cache = str(tmp_path / "cache")
    before = logits(path, weights_cache=cache)
    config = path / "config.json"
    config.write_text(config.read_text().replace('"gptq"}', '"gptq_v2"}'))
    after = logits(path)
    assert (before != after).any()
    np.testing.assert_array_equal(logits(path, weights_cache=cache), after)


@pytest.mark.parametrize(
    ("name", "dtype", "lost"),
    [
        ("gptq 128 symmetric", "int4", ""),
        ("gptq 128 symmetric", "int8", ""),
        ("gptq 32", "int8", ""),
        ("gptq 32", "int4", "rounded to int4: 14 of GPTQ"),
        ("gptq act-order with zeros", "int8", ""),
        ("gptq act-order with zeros", "int4", "rounded to int4: 14 of GPTQ"),
        ("gptq act-order", "int4", ""),
        ("gptq act-order", "bf16", ""),
        ("fp8 blocks", "int8", "rounded to int8: 14 of FP8"),
        ("fp8 blocks", "bf16", ""),
    ],
)
def test_an_explicit_dtype_is_that_of_all(
    name: str, dtype: str, lost: str, directory: Path, tmp_path: Path
) -> None:
    case = CASES[name]
    root = write_quantised(directory, tmp_path / "model", case.config, case.make)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = load(root / "quantised", dtype=dtype)
    assert engine.description()["dtypes"] == dtype
    engine.close()
    assert [lost in str(warning.message) for warning in caught] == [True] * bool(lost)


def test_fp8_is_as_near_as_its_numbers_in_bf16_and_half_as_large(
    directory: Path, tmp_path: Path
) -> None:
    """Nothing but activations is rounded; a block of 128 has four bytes more."""
    case = CASES["fp8 blocks"]
    root = write_quantised(directory, tmp_path / "model", case.config, case.make)
    exact = logits(root / "plain", dtype="f32")
    errors, sizes = [], []
    for dtype in ("auto", "bf16"):
        made = logits(root / "quantised", dtype=dtype, kv_dtype="f32")
        errors.append(np.linalg.norm(made - exact))
        engine = load(root / "quantised", dtype=dtype)
        sizes.append(int(engine.description()["weight_bytes"]))
        engine.close()
    assert errors[0] <= errors[1]
    counts = Counter[bool]()  # of weights, by whether they are FP8
    for weight, tensor in load_file(root / "plain" / "model.safetensors").items():
        counts["proj" in weight] += tensor.numel()
    assert sizes[0] <= counts[True] * 132 / 128 + 1.01 * 4 * counts[False]


def transformers_logits(path: Path, *, rounded: bool) -> NDArray[Any]:
    """Return the logits after PROMPT's tokens in double precision.

    rounded: what goes into the matrices that are FP8 in the other checkpoint is rounded to bf16.
    """
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    for name, part in model.named_modules():
        if rounded and isinstance(part, torch.nn.Linear) and {*LINEAR} & {*name.split(".")}:
            part.register_forward_pre_hook(lambda _, rows: (rows[0].bfloat16().double(),))
    with torch.no_grad():
        return np.asarray(model(torch.tensor([PROMPT])).logits[0].numpy())


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("fp8 blocks", "qwen3"), ("fp8 blocks", "llama"), ("float channels", "llama")],
)
def test_fp8_is_as_near_to_transformers_as_activations_of_bf16_are(
    name: str, architecture: str, tmp_path: Path
) -> None:
    """Nothing else is rounded coarsely. Sums in f32 move few activations to another neighbour."""
    case = CASES[name]
    directory = make_checkpoint(tmp_path / "hf", architecture, **SHAPE)
    root = write_quantised(directory, tmp_path / "model", case.config, case.make)
    engine = load(root / "quantised", kv_dtype="f32")
    seq_id = engine.seq_new()
    made = np.array([engine.prefill_chunk(seq_id, [token], logits=True) for token in PROMPT])
    engine.close()
    exact = transformers_logits(root / "plain", rounded=False)
    by_rounding = np.linalg.norm(transformers_logits(root / "plain", rounded=True) - exact)
    assert np.linalg.norm(made - exact) < 1.25 * by_rounding
    highest = np.sort(exact, axis=1)[:, -2:]
    is_clear = highest[:, 1] - highest[:, 0] > 2 * np.abs(made - exact).max(axis=1)
    assert is_clear.sum() > len(PROMPT) / 2
    np.testing.assert_array_equal(made.argmax(axis=1)[is_clear], exact.argmax(axis=1)[is_clear])


@pytest.mark.parametrize(
    ("name", "value", "at"),
    [("weight", 0x7F, r"\[3, 5\]"), ("weight", 0xFF, r"\[3, 5\]"), (SCALE, np.nan, r"\[0, 0\]")]
    + [(SCALE, sign * np.inf, r"\[0, 0\]") for sign in (1, -1)],
)
def test_what_is_no_number_is_refused_by_name(
    name: str, value: float, at: str, directory: Path, tmp_path: Path
) -> None:
    def damaged(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Parts, Floats]:
        parts, values = case.make(rng, shape)
        if name == "weight":
            parts["weight"].view(torch.uint8)[3, 5] = int(value)
        else:
            parts[SCALE][0, 0] = value
        return parts, values

    case = CASES["fp8 blocks"]
    path = write_quantised(directory, tmp_path / "model", case.config, damaged) / "quantised"
    with pytest.raises(ModelFormatError, match=rf"layers\.0\.q\.weight.* at {at}"):
        load(path)


@pytest.mark.parametrize("name", ["packed 128 with zeros", "packed act-order"])
def test_a_head_may_be_quantised_too(name: str, directory: Path, tmp_path: Path) -> None:
    case = CASES[name]
    root = write_quantised(directory, tmp_path / "model", case.config, case.make, head=True)
    exact = logits(root / "plain", dtype="f32")
    np.testing.assert_array_equal(logits(root / "quantised", dtype="f32"), exact)
    made = logits(root / "quantised", kv_dtype="f32")
    assert np.linalg.norm(made - exact) < 0.03 * np.linalg.norm(exact)


def test_fused_modules_are_cut_by_their_outputs(tmp_path: Path) -> None:
    """As Phi-3 has them, with heads whose rows are put in another order."""
    shape = {**SHAPE, "partial_rotary_factor": 0.5}
    shape.pop("head_dim")
    directory = make_checkpoint(tmp_path / "phi3", "phi3", **shape)
    for name in ("awq 32", "gptq act-order"):
        case = CASES[name]
        root = write_quantised(directory, tmp_path / name, case.config, case.make)
        exact = logits(root / "plain", dtype="f32")
        np.testing.assert_array_equal(logits(root / "quantised", dtype="f32"), exact)
        made = logits(root / "quantised", kv_dtype="f32")
        assert np.linalg.norm(made - exact) < 0.03 * np.linalg.norm(exact)
