"""Apertus: norms of q and k of each head, and an MLP without a gate.

The activation of the MLP is xIELU (Huang and Schlag 2024, arXiv:2411.13010), which has four numbers
in each layer. A checkpoint has them as tensors, a GGUF file in its metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.llama_config import read_sizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.rope import Rope, read_rope
from ..checkpoints.tensors import TensorRule
from ..parts import llama_like
from ..parts.family import Family
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_llama import biases, gguf_blueprint, read_gguf_config, renamed

_NORMS = {"attn_norm": "attention_layernorm", "mlp_norm": "feedforward_layernorm"}
_SHAPES: dict[str, tuple[int, ...]] = {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}
"""The shapes of the numbers of the activation in a checkpoint."""

_THETA = 12000000.0
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": _THETA,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
"""transformers' rope_parameters if config.json has none."""


def _read(fields: Fields) -> Blueprint:
    sizes = read_sizes(fields, llama_like.NAMES)
    rope = _read_rope(fields, sizes.head_dim, sizes.max_position_embeddings)
    windows = (0,) * sizes.n_layers
    config = llama_like.read_config(
        fields, windows, rope=rope, norm_eps=1e-5, hidden_act=("xielu",)
    )
    config = _with_xielu(config)
    bias = fields.boolean("attention_bias", False)
    rules = (*_llama_rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=False), *_numbers(config))
    return Blueprint(config, rules, tied=fields.boolean("tie_word_embeddings", False))


def _read_rope(fields: Fields, head_dim: int, max_positions: int) -> Rope:
    if fields.get("rope_parameters") is None and fields.get("rope_scaling") in (None, {}):
        fields = Fields({"rope_parameters": _LLAMA3}, "apertus")
    return read_rope(fields, head_dim, max_positions, default_theta=_THETA)


def _with_xielu(config: ModelConfig) -> ModelConfig:
    """Return a Llama-like configuration with the MLP of Apertus."""
    return replace(config, gated_mlp=False, activation="xielu")


def _llama_rules(
    config: ModelConfig, *, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> Iterator[TensorRule]:
    """Yield a rule for every tensor but the numbers of the activation."""
    return llama_like.rules(
        config, qkv_bias=qkv_bias, o_bias=o_bias, mlp_bias=mlp_bias, norms=_NORMS, qk_norm=True
    )


def _numbers(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield the rules of the numbers of the activation of each layer."""
    for layer in range(config.n_layers):
        for name, shape in _SHAPES.items():
            yield TensorRule(
                name=f"layers.{layer}.xielu.{name}",
                source=f"model.layers.{layer}.mlp.act_fn.{name}",
                shape=shape,
            )


def _read_gguf(contents: GgufContents) -> Blueprint:
    config = _with_xielu(read_gguf_config(contents))
    rules = renamed(_llama_rules(config, **biases(contents)))
    return gguf_blueprint(contents, config, (*rules, *_gguf_numbers(contents.metadata, config)))


def _gguf_numbers(metadata: Fields, config: ModelConfig) -> Iterator[TensorRule]:
    """Yield the rules of the same numbers in the metadata. A key may have one for all layers."""
    for name in _SHAPES:
        key = f"xielu.{name}"
        for layer, value in enumerate(_read_numbers(metadata, key, config.n_layers)):
            yield TensorRule(
                name=f"layers.{layer}.{key}", source=key, shape=(1,), value=float(value)
            )


def _read_numbers(metadata: Fields, key: str, n_layers: int) -> NDArray[np.float32]:
    found = metadata.get(key)
    if isinstance(found, float):
        found = np.full(n_layers, found)
    is_right = isinstance(found, np.ndarray) and found.dtype.kind == "f" and len(found) == n_layers
    if is_right:
        with np.errstate(over="ignore"):
            numbers: NDArray[np.float32] = found.astype(np.float32)
        if np.isfinite(numbers).all():
            return numbers
    raise metadata.error(key, f"a finite number, or one for each of {n_layers} layers")


FAMILY = Family(
    hf={"apertus": _read},
    classes={"apertus": "ApertusForCausalLM"},
    gguf={"apertus": _read_gguf},
)
