"""Gemma 4 in GGUF files: keys that vary by layer, and the tensors that layers share.

Sizes of layers that see all have the usual keys; those of layers that see a window have keys that
end in `_swa`. Of what varies from layer to layer a key is a list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH
from ..checkpoints.llama_config import LlamaSizes, llama_config
from ..checkpoints.model_config import LayerShape, ModelConfig
from ..checkpoints.rope import Rope, read_rope
from ..checkpoints.tensors import TensorRule
from ..families import gemma4, gemma4_moe
from . import gguf_moe
from .gguf_keys import ArchitectureKeys

__all__ = ["NAMES", "expert_rules", "read", "rules", "unused_tensors"]

NAMES = {
    "experts_norm": "pre_ffw_norm_2",
    "mlp_out_norm": "post_ffw_norm_1",
    "experts_out_norm": "post_ffw_norm_2",
}
"""GGUF's names of norms around MLP and experts."""

_NO_TURN = 1e29
_EXPERTS = gguf_moe.GgufExperts(beside_mlp=True)


def read(
    keys: ArchitectureKeys, vocab_size: int, rope_divisors: NDArray[np.float64] | None
) -> ModelConfig:
    """Return the configuration of a gemma4 file.

    rope_divisors: of the frequencies of layers that see all. Raises ModelFormatError.
    """
    keys.refuse_unless("attention.scale", 1.0)
    n_layers = keys.integer("block_count", 1, MAX_LAYERS)
    sliding = tuple(keys.flags("attention.sliding_window_pattern", n_layers))
    window = keys.integer("attention.sliding_window", 1, MAX_POSITIONS)
    shapes = _read_shapes(keys, sliding)
    positions = keys.integer("context_length", 1, MAX_POSITIONS)
    size = keys.integer("embedding_length_per_layer_input", 0, MAX_WIDTH // n_layers, 0)
    sizes = LlamaSizes(
        hidden_size=keys.integer("embedding_length", 1, MAX_WIDTH),
        n_layers=n_layers,
        n_heads=_n_heads(keys),
        n_kv_heads=shapes[0].n_kv_heads,
        head_dim=shapes[0].head_dim,
        intermediate_size=shapes[0].intermediate_size,
        max_position_embeddings=positions,
    )
    config = llama_config(
        sizes,
        architecture="gemma4",
        vocab_size=vocab_size,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=None,
        sliding_windows=tuple(window if slides else 0 for slides in sliding),
    )
    return gemma4.with_parts(
        config,
        shapes=shapes,
        ropes=_read_ropes(keys, positions, rope_divisors),
        sliding=sliding,
        layer_input_size=size,
        logit_softcap=keys.number("final_logit_softcapping", 0.0, 1e6, 0.0),
        moe=gguf_moe.read_moe(keys, _EXPERTS, sizes),
    )


def rules(config: ModelConfig, **_biases: bool) -> Iterator[TensorRule]:
    """Yield the rules of a file. Where a layer has no v of its own, k's product is v's too."""
    for rule in gemma4.rules(config, bias=False, keys_as_values=(False,) * config.n_layers):
        part = rule.name.split(".")
        if part[2:] == ["v", "weight"]:
            keys = f"blk.{part[1]}.attn_k.weight"
            rule = replace(rule, otherwise=replace(rule, source=keys))
        yield rule


def expert_rules(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield the rules of routers and experts, with GGUF's names as sources.

    The converter writes gate over up in one tensor; other programs keep them apart.
    """
    if config.moe is None:
        return
    n, inner = config.moe.n_experts, config.moe.intermediate_size
    for rule in gguf_moe.expert_rules(config):
        _, number, *_, part, _ = rule.name.split(".")
        if part not in ("gate", "up"):
            yield rule
            continue
        first = 0 if part == "gate" else inner
        yield replace(
            rule,
            source=f"blk.{number}.ffn_gate_up_exps.weight",
            shape=(n, 2 * inner, config.hidden_size),
            rows=(first, first + inner),
            otherwise=rule,
        )
    for layer in range(config.n_layers):
        yield TensorRule(
            name=f"layers.{layer}.router_norm.weight",
            source=f"blk.{layer}.ffn_gate_inp.scale",
            shape=(config.hidden_size,),
            times=gemma4_moe.router_factor(config),
        )
        yield TensorRule(
            name=f"layers.{layer}.expert_scales.weight",
            source=f"blk.{layer}.ffn_down_exps.scale",
            shape=(n,),
        )


def unused_tensors(config: ModelConfig) -> Collection[str]:
    """Return the names of tensors that files have and no layer needs: of shared keys and values."""
    return {
        f"blk.{layer}.{part}.weight"
        for layer, shape in enumerate(config.layer_shapes)
        if shape.kv_layer >= 0
        for part in ("attn_k", "attn_v", "attn_k_norm")
    }


def _read_shapes(keys: ArchitectureKeys, sliding: tuple[bool, ...]) -> tuple[LayerShape, ...]:
    n_layers = len(sliding)
    name = "attention.shared_kv_layers"
    kv_layers = gemma4.shared_layers(sliding, keys.integer(name, 0, n_layers - 1, 0))
    if kv_layers is None:
        raise keys.error(name, "layers of either kind that are not shared")
    n_heads = _n_heads(keys)
    kv_heads = _by_layer(keys, "attention.head_count_kv", n_layers, MAX_HEADS)
    if any(n_heads % n for n in kv_heads):
        raise keys.error("attention.head_count_kv", f"divisors of the {n_heads} heads")
    inner = _by_layer(keys, "feed_forward_length", n_layers, MAX_WIDTH)
    head_dims = {slides: _head_dim(keys, "_swa" if slides else "") for slides in set(sliding)}
    shapes: list[LayerShape] = []
    for layer, (slides, kv_layer) in enumerate(zip(sliding, kv_layers, strict=True)):
        if kv_layer >= 0 and kv_heads[layer] != kv_heads[kv_layer]:
            raise keys.error("attention.head_count_kv", f"in layer {layer} that of {kv_layer}")
        shapes.append(
            LayerShape(
                n_kv_heads=kv_heads[layer],
                head_dim=head_dims[slides],
                intermediate_size=inner[layer],
                kv_layer=kv_layer,
            )
        )
    return tuple(shapes)


def _n_heads(keys: ArchitectureKeys) -> int:
    return keys.integer("attention.head_count", 1, MAX_HEADS)


def _head_dim(keys: ArchitectureKeys, suffix: str) -> int:
    name = f"attention.key_length{suffix}"
    head_dim = keys.integer(name, 2, MAX_HEAD_DIM)
    if head_dim % 2:
        raise keys.error(name, f"an even number up to {MAX_HEAD_DIM}")
    keys.refuse_unless(f"attention.value_length{suffix}", head_dim)
    keys.refuse_unless(f"rope.dimension_count{suffix}", head_dim)
    return head_dim


def _read_ropes(
    keys: ArchitectureKeys, positions: int, divisors: NDArray[np.float64] | None
) -> tuple[Rope, Rope]:
    keys.refuse_unless("rope.scaling.type", "none")
    ropes = []
    for suffix, default in (("", 1e6), ("_swa", 1e4)):
        theta = keys.number(f"rope.freq_base{suffix}", 1e-3, 1e12, default)
        head_dim = keys.integer(f"attention.key_length{suffix}", 2, MAX_HEAD_DIM, 2)
        source = Fields({"rope_theta": theta}, keys.fields.source)
        ropes.append(read_rope(source, head_dim, positions))
    full, sliding = ropes
    if divisors is None:
        return full, sliding
    if divisors.shape != (len(full.inv_freq),):
        raise keys.error("attention.key_length", f"twice the {divisors.size} of rope_freqs")
    # Of a pair that does not turn the file has a divisor for a frequency of nearly 0.
    exact = (0.0 if d >= _NO_TURN else f / d for f, d in zip(full.inv_freq, divisors, strict=True))
    inv_freq = tuple(float(np.float32(f)) for f in exact)
    return replace(full, inv_freq=inv_freq), sliding


def _by_layer(keys: ArchitectureKeys, name: str, n_layers: int, high: int) -> list[int]:
    """Return a number for each layer, of a key that is a list of them, or one for all."""
    values = _as_list(keys.get(name))
    if not isinstance(values, list):
        return [keys.integer(name, 1, high)] * n_layers
    if len(values) != n_layers or any(type(v) is not int or not 1 <= v <= high for v in values):
        raise keys.error(name, f"a number from 1 to {high}, or one for each of {n_layers} layers")
    return values


def _as_list(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
