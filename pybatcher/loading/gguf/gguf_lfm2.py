"""LFM2 in GGUF files: which layers are convolutions, and llama.cpp's names of tensors.

A layer that is one has no heads of keys and values. The final norm has the name of a norm of the
embedding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_CONV_SIZE, MAX_HEADS, MAX_LAYERS
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.tensors import Tensor, TensorRule
from ..families import lfm2
from .gguf_keys import ArchitectureKeys
from .gguf_moe import expert_rules
from .gguf_names import gguf_name

__all__ = ["NAMES", "change", "plain", "rules"]

_KV_HEADS = "attention.head_count_kv"
NAMES = {
    "final_norm": "token_embd_norm",
    "short_conv.in": "shortconv.in_proj",
    "short_conv.o": "shortconv.out_proj",
    "short_conv.convolution": "shortconv.conv.weight",
}
"""GGUF's names, where they are not those of a Llama."""


def plain(keys: ArchitectureKeys) -> Fields:
    """Return the metadata with the heads of keys and values of the layers that have any."""
    if not isinstance(keys.get(_KV_HEADS), np.ndarray):
        return keys.fields
    n_kv_heads = sorted(set(_kv_heads(keys).tolist()) - {0})
    if len(n_kv_heads) != 1:
        raise keys.error(_KV_HEADS, "0 or one and the same number for each layer")
    return keys.fields.with_values({keys.prefix + _KV_HEADS: n_kv_heads[0]})


def change(keys: ArchitectureKeys, config: ModelConfig) -> ModelConfig:
    """Return the configuration of a lfm2 file, of a Llama-like one. Raises ModelFormatError."""
    if not isinstance(keys.get(_KV_HEADS), np.ndarray):
        return config
    conv_size = keys.integer("shortconv.l_cache", lfm2.MIN_CONV_SIZE, MAX_CONV_SIZE)
    in_layer = tuple(n == 0 for n in _kv_heads(keys).tolist())
    return lfm2.with_short_conv(config, conv_size, in_layer)


def _kv_heads(keys: ArchitectureKeys) -> NDArray[np.integer]:
    n_layers = keys.integer("block_count", 1, MAX_LAYERS)
    found: NDArray[np.integer] = keys.get(_KV_HEADS)
    is_whole = found.dtype.kind in "iu" and len(found) == n_layers
    if not is_whole or not ((found >= 0) & (found <= MAX_HEADS)).all():
        raise keys.error(_KV_HEADS, f"a whole number from 0 to {MAX_HEADS} for each block")
    return found


def rules(config: ModelConfig, tensors: Mapping[str, Tensor]) -> Iterator[TensorRule]:
    """Yield a rule for every tensor, with GGUF's names as sources."""
    for rule in lfm2.rules(config):
        shape = (rule.shape[0], rule.shape[2]) if rule.squeezed else rule.shape
        yield replace(rule, source=gguf_name(rule.name, NAMES), shape=shape, squeezed=False)
    yield from expert_rules(config)
    for layer in range(config.n_layers):
        source = f"blk.{layer}.exp_probs_b.bias"
        if config.moe is not None and config.moe.in_layer[layer] and source in tensors:
            shape = (config.moe.n_experts,)
            yield TensorRule(name=f"layers.{layer}.expert_bias", source=source, shape=shape)
