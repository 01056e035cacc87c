"""Qwen 3.5: three layers in four are gated delta nets; the attention of the others has a gate.

In the mixtures of experts (35B-A3B) every layer has experts and a shared expert.

Norms multiply by 1 + weight, except for the head norms of gated delta nets. The query projection
has, for each head, its query and then its gate. A part of each head is rotated, by three positions
in a model that takes images, which contains the text model and a vision tower.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from ...checkpoints.blueprint import TEXT_PREFIXES, Blueprint
from ...checkpoints.fields import Fields
from ...checkpoints.gated_delta_net import GatedDeltaNetConfig
from ...checkpoints.layer_types import read_layer_types
from ...checkpoints.limits import (
    MAX_CONV_SIZE,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCABULARY,
    MAX_WIDTH,
)
from ...checkpoints.llama_config import llama_config, read_sizes
from ...checkpoints.model_config import ModelConfig
from ...checkpoints.moe import MoeConfig
from ...checkpoints.rope import read_rope, read_rotary_dim, rotary_order
from ...checkpoints.tensors import TensorRule
from ...parts import experts, gguf_experts, llama_like
from ...parts.family import Family
from ...parts.gguf_contents import GgufContents
from ...parts.gguf_experts import SHARED_EXPERT_NAMES, GgufExperts
from ...parts.gguf_keys import ArchitectureKeys
from ...parts.gguf_llama import ROTARY_DIM, gguf_blueprint, read_gguf_config
from ...parts.gguf_names import gguf_name
from ...parts.qwen_vision import with_qwen_vision

_MOE = "qwen3_5_moe_text"
_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}
_DEFAULTS_OF_MOE: dict[str, Any] = {
    **_DEFAULTS,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}
_KINDS = ("full_attention", "linear_attention")
_NAMES_OF_MOE = llama_like.NAMES._replace(intermediate_size="shared_expert_intermediate_size")
_SECTION = (11, 11, 10)
_PERIOD = 4
"""The default period of attention layers."""

_MOST_PREDICTING = 8  # layers for multi-token prediction

GGUF_NAMES = {
    "mlp_norm": "post_attention_norm",
    "attn_gate": "attn_q",
    "gated_delta_net.qkv": "attn_qkv",
    "gated_delta_net.z": "attn_gate",
    "gated_delta_net.b": "ssm_beta",
    "gated_delta_net.a": "ssm_alpha",
    "gated_delta_net.decay": "ssm_a",
    "gated_delta_net.decay_bias": "ssm_dt.bias",
    "gated_delta_net.convolution": "ssm_conv1d.weight",
    "gated_delta_net.norm": "ssm_norm",
    "gated_delta_net.o": "ssm_out",
}
"""GGUF's names that differ from a Llama's."""
_PREDICTING = (
    *("attn_norm", "post_attention_norm", "attn_q", "attn_k", "attn_v", "attn_output"),
    *("attn_q_norm", "attn_k_norm", "ffn_gate", "ffn_up", "ffn_down"),
    *("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "nextn.embed_tokens"),
    *("nextn.shared_head_head", "nextn.shared_head_norm", "ffn_gate_inp", "ffn_gate_exps"),
    *("ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps", "ffn_gate_shexp", "ffn_up_shexp"),
    *("ffn_down_shexp", "ffn_gate_inp_shexp"),
)


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a qwen3_5_text or qwen3_5_moe_text config.json.

    Raises ModelFormatError.
    """
    has_experts = fields.text("model_type") == _MOE
    fields = fields.with_defaults(_DEFAULTS_OF_MOE if has_experts else _DEFAULTS)
    fields.refuse_unless("hidden_act", "silu", "swish")
    fields.refuse_unless("attn_output_gate", True)
    sizes = read_sizes(fields, _NAMES_OF_MOE if has_experts else llama_like.NAMES)
    rotary_dim = read_rotary_dim(fields, sizes.head_dim)
    rope = read_rope(fields, sizes.head_dim, sizes.max_position_embeddings, rotary_dim=rotary_dim)
    gated_delta_net = _read_gated_delta_net(fields, sizes.n_layers)
    config = llama_config(
        sizes,
        architecture="qwen3_5_moe" if has_experts else "qwen3_5",
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCABULARY),
        norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        rope=rope,
        sliding_windows=(0,) * sizes.n_layers,
    )
    config = _with_gated_delta_net(config, gated_delta_net)
    if has_experts:
        config = replace(config, moe=_read_moe(fields, sizes.n_layers))
    bias = fields.boolean("attention_bias", False)
    found = (*_rules(config, bias=bias, norm_plus=1.0), *experts.expert_rules(config))
    return Blueprint(config, found, fields.boolean("tie_word_embeddings", False))


def _read_multimodal(fields: Fields) -> Blueprint:
    """Return the blueprint of a qwen3_5 or qwen3_5_moe config.json, which has a vision tower.

    Raises ModelFormatError.
    """
    kind = f"{fields.text('model_type')}_text"
    text = fields.child("text_config").with_defaults(
        {"model_type": kind, "tie_word_embeddings": fields.get("tie_word_embeddings")}
    )
    text.refuse_unless("model_type", kind)
    blueprint = replace(_read(text), text_prefixes=TEXT_PREFIXES)
    return with_qwen_vision(blueprint, fields, _SECTION)


def _with_gated_delta_net(config: ModelConfig, gated_delta_net: GatedDeltaNetConfig) -> ModelConfig:
    """Return a Llama-like configuration with gated delta nets, and gates in attention layers."""
    return replace(
        config,
        attention_gate=True,
        gated_delta_net=gated_delta_net,
        layer_ropes=tuple(-1 if recurrent else 0 for recurrent in gated_delta_net.in_layer),
    )


def _read_gated_delta_net(fields: Fields, n_layers: int) -> GatedDeltaNetConfig:
    in_layer = _read_recurrent_layers(fields, n_layers)
    n_key_heads = fields.integer("linear_num_key_heads", 1, MAX_HEADS)
    n_value_heads = fields.integer("linear_num_value_heads", 1, MAX_HEADS)
    if n_value_heads % n_key_heads:
        raise fields.error("linear_num_value_heads", f"a multiple of {n_key_heads} key heads")
    gated_delta_net = GatedDeltaNetConfig(
        n_key_heads=n_key_heads,
        n_value_heads=n_value_heads,
        key_dim=fields.integer("linear_key_head_dim", 1, MAX_HEAD_DIM),
        value_dim=fields.integer("linear_value_head_dim", 1, MAX_HEAD_DIM),
        conv_size=fields.integer("linear_conv_kernel_dim", 1, MAX_CONV_SIZE),
        in_layer=in_layer,
    )
    for name, size in (("key", gated_delta_net.key_size), ("value", gated_delta_net.value_size)):
        if size > MAX_WIDTH:
            raise fields.error(f"linear_num_{name}_heads", f"up to {MAX_WIDTH} in all heads")
    return gated_delta_net


def _read_moe(fields: Fields, n_layers: int) -> MoeConfig:
    n_experts = experts.read_n_experts(fields, "num_experts", n_layers)
    return MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer("num_experts_per_tok", 1, n_experts),
        intermediate_size=fields.integer("moe_intermediate_size", 1, MAX_WIDTH),
        normalised=True,
        in_layer=(True,) * n_layers,
        shared_expert=True,
    )


def _read_recurrent_layers(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    in_layer = read_layer_types(fields, n_layers, _KINDS, "full_attention_interval", _PERIOD)
    if all(in_layer):
        raise fields.error("layer_types", "one or more layers of 'full_attention'")
    return in_layer


def _rules(config: ModelConfig, *, bias: bool, norm_plus: float) -> Iterator[TensorRule]:
    """Yield a rule for every tensor, with transformers' names as sources.

    bias: True if the attention projections have biases. norm_plus: a number added to the weights of
        norms.
    """
    gated_delta_net = config.gated_delta_net
    assert gated_delta_net is not None
    head_dim = config.head_dim
    rotary_dim = config.ropes[0].rotary_dim
    order = rotary_order(head_dim, rotary_dim) or tuple(range(head_dim))
    of_attention = ("q", "k", "v", "o", "q_norm", "k_norm")
    for rule in llama_like.rules(
        config, qkv_bias=bias, o_bias=bias, mlp_bias=False, qk_norm=True, norm_plus=norm_plus
    ):
        _, number, part, *_ = (*rule.name.split("."), "", "")
        if part not in of_attention:
            yield rule
        elif gated_delta_net.in_layer[int(number)]:
            continue
        elif part == "q":
            doubled = (2 * rule.shape[0], *rule.shape[1:])
            queries = replace(rule, shape=doubled, head_order=order, head_rows=2 * head_dim)
            yield queries
            gate = tuple(range(head_dim, 2 * head_dim))
            yield replace(queries, name=rule.name.replace(".q.", ".attn_gate."), head_order=gate)
        elif part in ("k", "q_norm", "k_norm"):
            yield replace(rule, head_order=order)
        else:
            yield rule
    for layer, recurrent in enumerate(gated_delta_net.in_layer):
        if recurrent:
            yield from _gated_delta_net_rules(config.hidden_size, gated_delta_net, layer)
        if config.moe is not None:
            yield from experts.shared_expert_rules(config, layer)


def _gated_delta_net_rules(
    hidden: int, gated_delta_net: GatedDeltaNetConfig, layer: int
) -> Iterator[TensorRule]:
    here, there = f"layers.{layer}.gated_delta_net.", f"model.layers.{layer}.linear_attn."
    n_heads, n_channels, value = (
        gated_delta_net.n_value_heads,
        gated_delta_net.n_channels,
        gated_delta_net.value_size,
    )
    for name, source, shape in (
        ("qkv.weight", "in_proj_qkv.weight", (n_channels, hidden)),
        ("z.weight", "in_proj_z.weight", (value, hidden)),
        ("b.weight", "in_proj_b.weight", (n_heads, hidden)),
        ("a.weight", "in_proj_a.weight", (n_heads, hidden)),
        ("decay_bias", "dt_bias", (n_heads,)),
        ("norm.weight", "norm.weight", (gated_delta_net.value_dim,)),
        ("o.weight", "out_proj.weight", (hidden, value)),
    ):
        yield TensorRule(name=here + name, source=there + source, shape=shape)
    yield TensorRule(name=f"{here}decay", source=f"{there}A_log", shape=(n_heads,), minus_exp=True)
    yield TensorRule(
        name=f"{here}convolution",
        source=f"{there}conv1d.weight",
        shape=(n_channels, 1, gated_delta_net.conv_size),
        squeezed=True,
    )


def _read_gguf(contents: GgufContents) -> Blueprint:
    config = read_gguf_config(contents, architecture="qwen3_5", reads=(ROTARY_DIM,))
    return _gguf_blueprint(contents, config)


def _read_gguf_moe(contents: GgufContents) -> Blueprint:
    config = read_gguf_config(
        contents,
        architecture="qwen3_5_moe",
        reads=(ROTARY_DIM,),
        experts=GgufExperts(always=True, shared_expert=True),
        width="expert_shared_feed_forward_length",
    )
    return _gguf_blueprint(contents, config)


def _gguf_blueprint(contents: GgufContents, config: ModelConfig) -> Blueprint:
    config = _with_gguf_gated_delta_net(contents.keys, config)
    return gguf_blueprint(contents, config, _gguf_rules(config), _gguf_unused(config))


def _with_gguf_gated_delta_net(keys: ArchitectureKeys, config: ModelConfig) -> ModelConfig:
    """Return the configuration with the gated delta nets of the file.

    The file orders value heads by their index within a key head: first the first value head of
    each key head, then the second of each. Layers for multi-token prediction come last; they are
    not loaded.
    """
    n_predicting = keys.integer("nextn_predict_layers", 0, _MOST_PREDICTING, 0)
    if n_predicting >= config.n_layers:
        raise keys.error("nextn_predict_layers", f"fewer than the {config.n_layers} blocks")
    n_layers = config.n_layers - n_predicting
    config = replace(config, n_layers=n_layers, sliding_windows=(0,) * n_layers)
    if config.moe is not None:
        config = replace(config, moe=replace(config.moe, in_layer=(True,) * n_layers))
    n_key_heads = keys.integer("ssm.group_count", 1, MAX_HEADS)
    n_value_heads = keys.integer("ssm.time_step_rank", 1, MAX_HEADS)
    if n_value_heads % n_key_heads:
        raise keys.error("ssm.time_step_rank", f"a multiple of {n_key_heads} groups")
    head_dim = keys.integer("ssm.state_size", 1, MAX_HEAD_DIM)
    if n_value_heads * head_dim > MAX_WIDTH:
        raise keys.error("ssm.state_size", f"up to {MAX_WIDTH} in all heads")
    keys.refuse_unless("ssm.inner_size", n_value_heads * head_dim)
    gated_delta_net = GatedDeltaNetConfig(
        n_key_heads=n_key_heads,
        n_value_heads=n_value_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        conv_size=keys.integer("ssm.conv_kernel", 1, MAX_CONV_SIZE),
        in_layer=_gguf_recurrent_layers(keys, n_layers, n_predicting),
        in_turn=True,
    )
    return _with_gated_delta_net(config, gated_delta_net)


def _gguf_recurrent_layers(
    keys: ArchitectureKeys, n_layers: int, n_predicting: int
) -> tuple[bool, ...]:
    name = "attention.recurrent_layers"
    if keys.get(name) is None:
        name = "full_attention_interval"
        period = keys.integer(name, 1, MAX_LAYERS, _PERIOD)
        in_layer = tuple((layer + 1) % period != 0 for layer in range(n_layers))
    else:
        in_layer = tuple(keys.flags(name, n_layers + n_predicting)[:n_layers])
    if all(in_layer):
        raise keys.error(name, "a value with which one or more layers have attention")
    return in_layer


def _gguf_rules(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield a rule for every tensor, with GGUF's names as sources.

    Weights of norms include the added 1, and the file has decays instead of their logarithms.
    """
    names = GGUF_NAMES if config.moe is None else GGUF_NAMES | SHARED_EXPERT_NAMES
    for rule in _rules(config, bias=False, norm_plus=0.0):
        shape = rule.shape
        if rule.squeezed:
            shape = (shape[0], shape[2])
        elif rule.index is not None:  # the gate of a shared expert
            shape = shape[1:]
        yield replace(
            rule,
            source=gguf_name(rule.name, names),
            shape=shape,
            squeezed=False,
            minus_exp=False,
            index=None,
        )
    yield from gguf_experts.expert_rules(config)


def _gguf_unused(config: ModelConfig) -> Collection[str]:
    """Return the names of the tensors of layers for multi-token prediction."""
    layers = range(config.n_layers, config.n_layers + _MOST_PREDICTING)
    return {f"blk.{layer}.{part}.weight" for layer in layers for part in _PREDICTING}


FAMILY = Family(
    hf={
        "qwen3_5_text": _read,
        "qwen3_5": _read_multimodal,
        "qwen3_5_moe_text": _read,
        "qwen3_5_moe": _read_multimodal,
    },
    classes={
        "qwen3_5_text": "Qwen3_5ForCausalLM",
        "qwen3_5": "Qwen3_5ForConditionalGeneration",
        "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    },
    gguf={"qwen35": _read_gguf, "qwen35moe": _read_gguf_moe},
)
