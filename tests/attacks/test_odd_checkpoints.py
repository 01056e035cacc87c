"""Fields, keys and tensors of checkpoints that are anything: read, or refused by a typed error.

What is read stays in bounds: every dtype of a quantised matrix holds about the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from gguf_configs import read_config
from quantised_files import (
    Parts,
    awq,
    float8,
    gptq,
    int_quantized,
    module,
    pack_quantized,
    random_numbers,
)

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import gguf_architectures
from pybatcher.loading.safetensors.quantised import StoredWeight, read_scheme, with_matrices
from pybatcher.loading.tokenizers.gguf_tokenizer import read_tokenizer

SHAPE = (40, 64)
HOSTILE = "\ud800\n" + "y" * 10_000


def refused(error: ModelFormatError) -> None:
    """Check a message: one line that can be shown and sent."""
    said = str(error)
    said.encode()
    assert len(said) < 2000
    assert said.isprintable(), said


# -- quantised checkpoints ---------------------------------------------------------------------


def _compressed(format: str, **weights: Any) -> dict[str, Any]:
    known = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group"}
    known |= {"group_size": 32, "dynamic": False, "actorder": None, "block_structure": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "sparsity_config": {"format": "dense"},
        "transform_config": {},
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {**known, **weights}}},
    }


def _numbers(**options: Any) -> Any:
    group = options.pop("group", 32)
    return random_numbers(np.random.default_rng(1), SHAPE, group, **options)


def _floats(shape: tuple[int, ...], name: str) -> Parts:
    return float8(np.random.default_rng(1), SHAPE, shape, name)[0]


_EIGHT = {"num_bits": 8, "group_size": None}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "pack_dtype": "int32"}
_GPTQ |= {"checkpoint_format": "gptq", "dynamic": {}, "is_marlin_format": False, "sym": True}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}
_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
CHECKPOINTS: dict[str, tuple[dict[str, Any], Parts]] = {
    "gptq": (_GPTQ, gptq(_numbers(symmetric=False, ordered=True))),
    "awq": ({**_AWQ, "version": "gemm"}, awq(_numbers(symmetric=False))),
    "pack-quantized": (
        _compressed("pack-quantized"),
        pack_quantized(_numbers(symmetric=False), symmetric=False, ordered=True),
    ),
    "whole zero points": (
        _compressed("pack-quantized"),
        pack_quantized(_numbers(symmetric=False), symmetric=True, ordered=False)
        | {"weight_zero_point": torch.zeros(40, 2, dtype=torch.int8)},
    ),
    "int-quantized": (
        _compressed("int-quantized", **_EIGHT, strategy="channel"),
        int_quantized(_numbers(symmetric=False, bits=8, group=-1), symmetric=False),
    ),
    "float-quantized": (
        _compressed("float-quantized", **_EIGHT, type="float", strategy="tensor", symmetric=True),
        _floats((1,), "weight_scale"),
    ),
    "fp8": ({**_FP8, "weight_block_size": [128, 128]}, _floats((1, 1), "weight_scale_inv")),
    "fp8 of outputs": (_FP8, _floats((40,), "weight_scale")),
}
ODD_FIELDS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 8, 31, 32, 64, 96, 2**31, -(2**63), 10**4000, 1e308),
    *(math.inf, math.nan, -0.0, 4.0, "", "x", "gptq_v2", "int", "group", HOSTILE, [], [[]], [1]),
    *([0, 0], [1, 1], [True, 1], [1e9, 1], [None, None], {}, {"a": 1}, {"a": {}, "b": {}}),
    *({HOSTILE: {"weights": {}}}, {HOSTILE: 1}, {"a": {"weights": {HOSTILE: 1}}}),
)


def places(fields: dict[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in fields.items():
        yield (*at, name)
        if isinstance(value, dict):
            yield from places(value, (*at, name))


def changed(fields: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    first, *rest = place
    return {**fields, first: changed(fields[first], tuple(rest), value) if rest else value}


def check(config: dict[str, Any], parts: Parts) -> bool:
    """Read a module; return whether it was taken. What is taken makes what it says it makes."""
    try:
        scheme = read_scheme(Fields({"quantization_config": config}, "config.json"))
        if scheme is None:
            return False
        tensors = with_matrices(module(parts), scheme, "a checkpoint")
    except ModelFormatError as error:
        refused(error)
        return False
    weight = tensors.get("m.weight")
    if weight is None or weight.stored is None:  # the model's own rules refuse what is left
        return False
    check_numbers(weight.stored)
    return True


def check_numbers(stored: StoredWeight) -> None:
    exact_by_input = stored.make("f32")
    assert exact_by_input.shape == stored.shape
    for dtype in ("int8", "int4", "int4_zp"):
        if stored.takes(dtype) != dtype or not stored.holds(dtype):
            continue
        order = stored.order(dtype)
        exact = exact_by_input if order is None else exact_by_input[:, order]
        blocks = stored.make(dtype).reshape(-1, {"int8": 34, "int4": 18, "int4_zp": 20}[dtype])
        scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        if dtype == "int8":
            whole = blocks[:, 2:].view(np.int8).astype(np.float32)
        else:
            pairs = blocks[:, -16:]
            zeros = blocks[:, 2:3].astype(np.float32) if dtype == "int4_zp" else np.float32(8)
            whole = np.concatenate([pairs & 15, pairs >> 4], axis=1) - zeros
        np.testing.assert_array_equal((whole * scales).reshape(exact.shape), exact)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_odd_fields_of_quantization_config(name: str) -> None:
    config, parts = CHECKPOINTS[name]
    assert check(config, parts)
    n_refused = 0
    for place in places(config):
        for value in ODD_FIELDS:
            n_refused += not check(changed(config, place, value), parts)
    assert n_refused > 100


DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8)
DTYPES += (torch.float8_e4m3fn,)
NUMBERS = (0, -1, 1, 15, 16, 100, 127, -9, -128, 2**31 - 1, -(2**31), math.nan, math.inf, 1e38)


def odd_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor | None]:
    """Yield tensors in place of one: none, of other types and shapes, with other numbers."""
    yield None
    for dtype in DTYPES:
        yield tensor.float().to(dtype)
    flat = tensor.flatten()
    for n in (0, 1, 7, 40, flat.numel() - 1):
        yield flat[:n].clone()
    yield flat[0].clone()
    yield flat
    if tensor.ndim == 2:
        yield from (tensor.T, tensor[:1], tensor[:, :1], tensor[:0], tensor[:, :0], tensor[None])
        yield torch.cat([tensor.contiguous().view(torch.uint8)] * 2).view(tensor.dtype)
    for number in NUMBERS:
        try:
            yield torch.full_like(tensor, number)
        except (RuntimeError, OverflowError):  # not a number of its type
            continue


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_odd_tensors_of_quantised_modules(name: str) -> None:
    config, parts = CHECKPOINTS[name]
    n_refused = 0
    for part, tensor in parts.items():
        for odd in odd_tensors(tensor):
            others = {other: value for other, value in parts.items() if other != part}
            n_refused += not check(config, others if odd is None else {**others, part: odd})
    assert n_refused > 20


# -- keys of GGUF files ------------------------------------------------------------------------

SIZES: dict[str, Any] = {
    "block_count": 4,
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
ENCODER: dict[str, Any] = {
    **{name: SIZES[name] for name in SIZES if "_kv" not in name and "key_" not in name},
    "attention.causal": False,
    "attention.layer_norm_epsilon": 1e-5,
}
EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
RECURRENT = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 64,
    "full_attention_interval": 2,
}
CONVOLVED = {
    "attention.head_count_kv": np.array([0, 2, 0, 2], np.int32),
    "shortconv.l_cache": 3,
}
OWN_KEYS: dict[str, dict[str, Any]] = {
    "bert": ENCODER,
    "minimax-m2": {**SIZES, **EXPERTS},
    "glm4moe": {**SIZES, **EXPERTS, "leading_dense_block_count": 1},
    "cohere2": {
        **SIZES,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.sliding_window": 32,
        "logit_scale": 0.25,
    },
    "ernie4_5-moe": {
        **SIZES,
        **EXPERTS,
        "expert_shared_count": 2,
        "leading_dense_block_count": 1,
        "interleave_moe_layer_step": 1,
    },
    "hunyuan-moe": {**SIZES, **EXPERTS, "expert_shared_count": 1},
    "olmoe": {**SIZES, **EXPERTS},
    "qwen2moe": {**SIZES, **EXPERTS},
    "stablelm": {**SIZES, "attention.layer_norm_epsilon": 1e-5},
    "starcoder2": {**SIZES, "attention.layer_norm_epsilon": 1e-5},
    "modern-bert": ENCODER,
    "gemma4": {
        **SIZES,
        "attention.key_length_swa": 16,
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": np.array([1, 1, 1, 0], np.uint32),
    },
    "gemma-embedding": {**SIZES, "attention.causal": False},
    "gpt-oss": {**SIZES, **EXPERTS, "attention.sliding_window": 32},
    "qwen3moe": {**SIZES, **EXPERTS},
    "qwen3vlmoe": {**SIZES, **EXPERTS},
    "granite": {**SIZES, "logit_scale": 8.0},
    "lfm2": {**SIZES, **CONVOLVED},
    "lfm2moe": {**SIZES, **EXPERTS, **CONVOLVED, "leading_dense_block_count": 1},
    "qwen35": {**SIZES, **RECURRENT},
    "qwen35moe": {**SIZES, **EXPERTS, **RECURRENT, "expert_shared_feed_forward_length": 48},
}
XIELU_KEYS = {
    **{"xielu.alpha_p": np.full(4, 0.3), "xielu.alpha_n": np.full(4, -0.3, np.float32)},
    **{"xielu.beta": 0.5, "xielu.eps": -1e-6},
}
BARE_KEYS: dict[str, dict[str, Any]] = {"apertus": XIELU_KEYS}
"""Keys without the name of the architecture."""
OTHER_KEYS = (
    *("attention.causal", "attention.scale", "attention.value_length", "attention.sliding_window"),
    *("attention.sliding_window_pattern", "attention.shared_kv_layers", "rope.dimension_count"),
    *("attention.temperature_scale", "rope.freq_base", "rope.freq_base_swa", "rope.scale_linear"),
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"),
    *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_log_multiplier", "embedding_scale"),
    *("final_logit_softcapping", "attn_logit_softcapping", "expert_gating_func", "expert_count"),
    *("embedding_length_per_layer_input", "attention.key_length_swa", "residual_scale"),
    *("attention.recurrent_layers", "nextn_predict_layers"),
)
ODD_KEYS: tuple[Any, ...] = (
    *(True, False, 0, 1, 2, 3, 17, 2**20, 2**31, 2**32 - 1, 2**63, 2**64 - 1, -1, -(2**63)),
    *(0.0, -0.0, 0.5, 1.0, 1e-40, 3e38, 1e300, math.nan, math.inf, -math.inf),
    *(
        "",
        "x",
        "none",
        "linear",
        "yarn",
        "no!!",
        "\0",
        "y" * 10_000,
        [],
        ["a"],
        [""] * 4,
        ["a"] * 9,
    ),
    *(np.zeros(0, np.float32), np.array([1, 0, 1, 0]), np.array([2, 0, -1, 0], np.int8)),
    *(np.array([math.nan] * 4), np.full(4, 2**64 - 1, np.uint64), np.array([True] * 4)),
    *(np.arange(300), np.array([1e300] * 300), np.array([b"\xff"[0]] * 9, np.uint8)),
)


@pytest.mark.parametrize("architecture", gguf_architectures())
def test_odd_keys_of_architectures(architecture: str) -> None:
    random = Random(architecture)
    own = OWN_KEYS.get(architecture, SIZES)
    whole = {f"{architecture}.{key}": value for key, value in own.items()}
    whole |= BARE_KEYS.get(architecture, {})
    whole["general.architecture"] = architecture

    def read(keys: dict[str, Any]) -> bool:
        divisors = random.choice([None, None, np.ones(8), np.ones(3), np.full(8, 1e-3)])
        try:
            config = read_config(Fields(keys, "model.gguf"), 384, divisors)
        except ModelFormatError as error:
            refused(error)
            return False
        assert config.n_layers == len(config.sliding_windows) == len(config.layer_ropes)
        return True

    n_refused = 0
    for key in sorted({*whole, *(f"{architecture}.{key}" for key in OTHER_KEYS)}):
        values = (*random.sample(ODD_KEYS, 12), None)
        n_refused += sum(not read({**whole, key: value}) for value in values)
    assert n_refused > 100
    assert read_config(Fields(whole, "model.gguf"), 384, None)


TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt2": {"pre": "gpt-2", "merges": ["a b"]},
    "gemma4": {"merges": ["a b"]},
    "llama": {"scores": np.zeros(8, np.float32)},
    "t5": {"scores": np.zeros(8, np.float32)},
    "bert": {},
}
TOKENIZER_KEYS = (
    *("model", "pre", "tokens", "token_type", "scores", "merges", "bos_token_id", "eos_token_id"),
    *("unknown_token_id", "padding_token_id", "seperator_token_id", "cls_token_id", "eot_token_id"),
    *("add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces"),
    *("precompiled_charsmap", "normalizer.lowercase", "normalizer.strip_accents"),
)


@pytest.mark.parametrize("model", TOKENIZERS)
@pytest.mark.filterwarnings("ignore:model.gguf. tokenizer.ggml.pre is missing")
def test_odd_keys_of_tokenizers(model: str) -> None:
    tokens = ["<unk>", "a", "b", "ab", "\u2581", "c", "<s>", "</s>"]
    kinds = np.array([2, 1, 1, 1, 1, 1, 3, 3], np.int32)
    known = {"model": model, "tokens": tokens, "token_type": kinds, **TOKENIZERS[model]}
    whole = {f"tokenizer.ggml.{key}": value for key, value in known.items()}

    def read(keys: dict[str, Any]) -> bool:
        try:
            parts = read_tokenizer(Fields(keys, "model.gguf"), 8)
        except ModelFormatError as error:
            refused(error)
            return False
        assert all(0 <= token_id < 8 for token_id in parts.eos_token_ids)
        return True

    assert read(whole)
    n_refused = 0
    for key in (*(f"tokenizer.ggml.{key}" for key in TOKENIZER_KEYS), "tokenizer.chat_template"):
        n_refused += sum(not read({**whole, key: value}) for value in (*ODD_KEYS, None))
    assert n_refused > 100
