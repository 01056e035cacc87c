"""LFM2 and 2.5, dense and mixtures of experts: most layers are short convolutions.

The other layers have attention. The first layers of a mixture are dense; its router selects experts
by the sigmoid of the logits plus a bias. `embedding_norm` is the final norm. Only the text part of
a model with images is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.blueprint import TEXT_PREFIXES, Blueprint
from ...checkpoints.fields import Fields
from ...checkpoints.limits import MAX_CONV_SIZE, MAX_HEADS, MAX_LAYERS, MAX_VOCABULARY, MAX_WIDTH
from ...checkpoints.llama_config import llama_config, read_sizes
from ...checkpoints.model_config import ModelConfig
from ...checkpoints.moe import MoeConfig
from ...checkpoints.rope import read_rope
from ...checkpoints.short_conv import ShortConvConfig
from ...checkpoints.tensors import TensorRule
from ...parts import experts, llama_like
from ...parts.family import Family
from ...parts.gguf_contents import GgufContents
from ...parts.gguf_experts import GgufExperts, expert_bias_rules
from ...parts.gguf_experts import expert_rules as gguf_expert_rules
from ...parts.gguf_keys import ArchitectureKeys
from ...parts.gguf_llama import gguf_blueprint, read_gguf_config
from ...parts.gguf_names import gguf_name
from ...parts.siglip import with_siglip2

_MIN_CONV_SIZE = 2
"""The minimum size of a convolution: a layer with a smaller one would have no state."""

_MOE = "lfm2_moe"
_KV_HEADS = "attention.head_count_kv"
GGUF_NAMES = {
    "final_norm": "token_embd_norm",
    "short_conv.in": "shortconv.in_proj",
    "short_conv.o": "shortconv.out_proj",
    "short_conv.convolution": "shortconv.conv.weight",
}
"""GGUF's names that differ from a Llama's; the final norm is called `token_embd_norm`."""
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 65536,
    "rope_theta": 1e6,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128_000,
    "conv_L_cache": 3,
}
_DEFAULTS_OF_MOE: dict[str, Any] = {
    **_DEFAULTS,
    "moe_intermediate_size": 1792,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "num_dense_layers": 2,
}
_KINDS = ("full_attention", "conv")
_NORMS = {"attn_norm": "operator_norm", "mlp_norm": "ffn_norm"}
_SOURCES = {
    "model.norm.": "model.embedding_norm.",
    ".self_attn.o_proj.": ".self_attn.out_proj.",
    ".self_attn.q_norm.": ".self_attn.q_layernorm.",
    ".self_attn.k_norm.": ".self_attn.k_layernorm.",
    ".mlp.gate_proj.": ".feed_forward.w1.",
    ".mlp.up_proj.": ".feed_forward.w3.",
    ".mlp.down_proj.": ".feed_forward.w2.",
}
_OF_ATTENTION = ("q", "k", "v", "o", "q_norm", "k_norm")


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a lfm2 or lfm2_moe config.json. Raises ModelFormatError."""
    architecture = fields.text("model_type")
    has_experts = architecture == _MOE
    fields = fields.with_defaults(_DEFAULTS_OF_MOE if has_experts else _DEFAULTS)
    fields.refuse_unless("conv_bias", False)
    width = "block_ff_dim" if "block_ff_dim" in fields and not has_experts else "intermediate_size"
    sizes = read_sizes(fields, llama_like.NAMES._replace(intermediate_size=width))
    if not has_experts:
        adjusted = _adjusted_width(fields, width, sizes.intermediate_size)
        sizes = sizes._replace(intermediate_size=adjusted)
    config = llama_config(
        sizes,
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCABULARY),
        norm_eps=fields.number("norm_eps", 0.0, 1.0, 1e-5),
        rope=read_rope(fields, sizes.head_dim, sizes.max_position_embeddings),
        sliding_windows=(0,) * sizes.n_layers,
    )
    conv_size = fields.integer("conv_L_cache", _MIN_CONV_SIZE, MAX_CONV_SIZE)
    config = _with_short_conv(config, conv_size, _read_conv_layers(fields, sizes.n_layers))
    if has_experts:
        config = replace(config, moe=_read_moe(fields, sizes.n_layers))
    has_bias = has_experts and fields.boolean("use_expert_bias", True)
    tied = "tie_embedding" if "tie_embedding" in fields else "tie_word_embeddings"
    found = (*_rules(config), *_expert_rules(config, has_bias))
    return Blueprint(config, found, fields.boolean(tied, True))


def _read_multimodal(fields: Fields) -> Blueprint:
    """Return the blueprint of a lfm2_vl config.json. Raises ModelFormatError."""
    ties = {name: fields.get(name) for name in ("tie_embedding", "tie_word_embeddings")}
    text = fields.child("text_config").with_defaults({"model_type": "lfm2", **ties})
    text.refuse_unless("model_type", "lfm2", _MOE)
    blueprint = replace(_read(text), text_prefixes=TEXT_PREFIXES)
    return with_siglip2(blueprint, fields) if "vision_config" in fields else blueprint


def _with_short_conv(
    config: ModelConfig, conv_size: int, in_layer: tuple[bool, ...]
) -> ModelConfig:
    """Return a Llama-like configuration with short convolutions in the layers `in_layer`."""
    if not any(in_layer):
        return config
    return replace(
        config,
        short_conv=ShortConvConfig(conv_size=conv_size, in_layer=in_layer),
        layer_ropes=tuple(-1 if is_conv else 0 for is_conv in in_layer),
    )


def _adjusted_width(fields: Fields, name: str, width: int) -> int:
    """Return the MLP's width: two thirds of `width` times a factor, rounded up to a multiple."""
    if not fields.boolean("block_auto_adjust_ff_dim", True):
        return width
    whole = fields.integer("block_multiple_of", 1, MAX_WIDTH, 256)
    factor = fields.number("block_ffn_dim_multiplier", 1e-6, 1e6, 1.0)
    width = -(-int(factor * int(2 * width / 3)) // whole) * whole
    if not 1 <= width <= MAX_WIDTH:
        raise fields.error(name, f"a width that becomes 1 to {MAX_WIDTH} (it becomes {width})")
    return width


def _read_conv_layers(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    found = fields.get("layer_types")
    if found is None:
        return _convolved_but(fields, n_layers)
    if not isinstance(found, list) or len(found) != n_layers or any(k not in _KINDS for k in found):
        raise fields.error("layer_types", f"a list of {n_layers} of " + " and ".join(_KINDS))
    if _KINDS[0] not in found:
        raise fields.error("layer_types", f"one or more layers of {_KINDS[0]!r}")
    return tuple(kind == _KINDS[1] for kind in found)


def _convolved_but(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    """Return, for each layer, True for a convolution; older files list the attention layers."""
    listed = fields.get("full_attn_idxs")
    if listed is None:
        return (False,) * n_layers
    numbers = listed if isinstance(listed, list) else []
    attending = [type(n) is int and 0 <= n < n_layers for n in numbers]
    if not attending or not all(attending):
        raise fields.error("full_attn_idxs", f"a list of numbers of layers, 0 to {n_layers - 1}")
    return tuple(layer not in numbers for layer in range(n_layers))


def _read_moe(fields: Fields, n_layers: int) -> MoeConfig | None:
    """Return the configuration of the experts; None: all layers are dense."""
    n_experts = experts.read_n_experts(fields, "num_experts", n_layers)
    n_dense = fields.integer("num_dense_layers", 0, MAX_LAYERS)
    if n_dense >= n_layers:
        return None
    return MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer("num_experts_per_tok", 1, n_experts),
        intermediate_size=fields.integer("moe_intermediate_size", 1, MAX_WIDTH),
        normalised=fields.boolean("norm_topk_prob", True),
        in_layer=tuple(layer >= n_dense for layer in range(n_layers)),
        sigmoid=True,
        weight_scale=fields.number("routed_scaling_factor", 1e-6, 1e6, 1.0),
    )


def _rules(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield a rule for every tensor except the experts', with transformers' names as sources."""
    convolved = config.recurrent_layers
    for rule in llama_like.rules(
        config, qkv_bias=False, o_bias=False, mlp_bias=False, norms=_NORMS, qk_norm=True
    ):
        _, number, part, *_ = (*rule.name.split("."), "", "")
        if part in _OF_ATTENTION and convolved[int(number)]:
            continue
        source = rule.source
        for theirs, own in _SOURCES.items():
            source = source.replace(theirs, own)
        yield replace(rule, source=source)
    hidden, short_conv = config.hidden_size, config.short_conv
    for layer in range(config.n_layers):
        if short_conv is None or not convolved[layer]:
            continue
        here, there = f"layers.{layer}.short_conv.", f"model.layers.{layer}.conv."
        yield TensorRule(
            name=f"{here}in.weight", source=f"{there}in_proj.weight", shape=(3 * hidden, hidden)
        )
        yield TensorRule(
            name=f"{here}o.weight", source=f"{there}out_proj.weight", shape=(hidden, hidden)
        )
        yield TensorRule(
            name=f"{here}convolution",
            source=f"{there}conv.weight",
            shape=(hidden, 1, short_conv.conv_size),
            squeezed=True,
        )


def _expert_rules(config: ModelConfig, has_bias: bool) -> Iterator[TensorRule]:
    """Yield the rules of routers and experts, whose matrices may be separate or stacked."""
    mixture = config.moe
    if mixture is None:
        return
    for layer in range(config.n_layers):
        if not mixture.in_layer[layer]:
            continue
        there = f"model.layers.{layer}.feed_forward."
        yield experts.router_rule(mixture, config.hidden_size, layer, f"{there}gate.weight")
        if has_bias:
            yield experts.expert_bias_rule(mixture, layer, f"{there}expert_bias")
        prefix = f"{there}experts."
        parts = experts.stacked_parts(mixture, config.hidden_size, prefix)
        yield from experts.matrix_rules(parts, layer, prefix, experts.W123)


def _read_gguf(contents: GgufContents) -> Blueprint:
    return _gguf_blueprint(
        contents, read_gguf_config(contents, metadata=_metadata_of_attention(contents))
    )


def _read_gguf_moe(contents: GgufContents) -> Blueprint:
    config = read_gguf_config(
        contents,
        architecture=_MOE,
        experts=GgufExperts(always=True, sigmoid=True, dense_first=True),
        metadata=_metadata_of_attention(contents),
    )
    return _gguf_blueprint(contents, config)


def _metadata_of_attention(contents: GgufContents) -> Fields:
    """Return the metadata with one number of KV heads, that of the attention layers.

    The file has a list, in which convolutions have 0 KV heads.
    """
    keys = contents.keys
    if not isinstance(keys.get(_KV_HEADS), np.ndarray):
        return contents.metadata
    n_kv_heads = sorted(set(_kv_heads(keys).tolist()) - {0})
    if len(n_kv_heads) != 1:
        raise keys.error(_KV_HEADS, "0 or one and the same number for each layer")
    return contents.metadata.with_values({keys.prefix + _KV_HEADS: n_kv_heads[0]})


def _kv_heads(keys: ArchitectureKeys) -> NDArray[np.integer]:
    n_layers = keys.integer("block_count", 1, MAX_LAYERS)
    found: NDArray[np.integer] = keys.get(_KV_HEADS)
    is_whole = found.dtype.kind in "iu" and len(found) == n_layers
    if not is_whole or not ((found >= 0) & (found <= MAX_HEADS)).all():
        raise keys.error(_KV_HEADS, f"a whole number from 0 to {MAX_HEADS} for each block")
    return found


def _gguf_blueprint(contents: GgufContents, config: ModelConfig) -> Blueprint:
    keys = contents.keys
    if isinstance(keys.get(_KV_HEADS), np.ndarray):
        conv_size = keys.integer("shortconv.l_cache", _MIN_CONV_SIZE, MAX_CONV_SIZE)
        in_layer = tuple(n == 0 for n in _kv_heads(keys).tolist())
        config = _with_short_conv(config, conv_size, in_layer)
    rules = (*_gguf_rules(config), *expert_bias_rules(config, contents.tensors))
    return gguf_blueprint(contents, config, rules)


def _gguf_rules(config: ModelConfig) -> Iterator[TensorRule]:
    for rule in _rules(config):
        shape = (rule.shape[0], rule.shape[2]) if rule.squeezed else rule.shape
        source = gguf_name(rule.name, GGUF_NAMES)
        yield replace(rule, source=source, shape=shape, squeezed=False)
    yield from gguf_expert_rules(config)


FAMILY = Family(
    hf={"lfm2": _read, "lfm2_moe": _read, "lfm2_vl": _read_multimodal},
    classes={
        "lfm2": "Lfm2ForCausalLM",
        "lfm2_moe": "Lfm2MoeForCausalLM",
        "lfm2_vl": "Lfm2VlForConditionalGeneration",
    },
    gguf={"lfm2": _read_gguf, "lfm2moe": _read_gguf_moe},
)
