"""Qwen 3.5 in GGUF files: keys of the recurrent layers, and llama.cpp's names of their tensors.

Value heads lie in turn: the first of each key head, then the second of each. Norms have the 1 in
their weights, and decays are as they are, without a logarithm. Layers that predict further tokens
come last, and are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from ..checkpoints.gated_delta_net import DeltaConfig
from ..checkpoints.limits import MAX_CONV_SIZE, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_WIDTH
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.tensors import Tensor, TensorRule
from ..families import qwen3_5
from .gguf_keys import ArchitectureKeys
from .gguf_moe import expert_rules
from .gguf_names import gguf_name

__all__ = ["NAMES", "SHARED_EXPERT_NAMES", "change", "rules", "unused_tensors"]

_MOST_PREDICTING = 8  # layers that predict further tokens

NAMES = {
    "mlp_norm": "post_attention_norm",
    "attn_gate": "attn_q",
    "delta.qkv": "attn_qkv",
    "delta.z": "attn_gate",
    "delta.b": "ssm_beta",
    "delta.a": "ssm_alpha",
    "delta.decay": "ssm_a",
    "delta.decay_bias": "ssm_dt.bias",
    "delta.convolution": "ssm_conv1d.weight",
    "delta.norm": "ssm_norm",
    "delta.o": "ssm_out",
}
"""GGUF's names, where they are not those of a Llama."""
SHARED_EXPERT_NAMES = {
    "gate": "ffn_gate_shexp",
    "up": "ffn_up_shexp",
    "down": "ffn_down_shexp",
    "shared_gate": "ffn_gate_inp_shexp.weight",
}
"""Beside these, where the MLP is a shared expert."""
_PREDICTING = (
    *("attn_norm", "post_attention_norm", "attn_q", "attn_k", "attn_v", "attn_output"),
    *("attn_q_norm", "attn_k_norm", "ffn_gate", "ffn_up", "ffn_down"),
    *("nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "nextn.embed_tokens"),
    *("nextn.shared_head_head", "nextn.shared_head_norm", "ffn_gate_inp", "ffn_gate_exps"),
    *("ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps", "ffn_gate_shexp", "ffn_up_shexp"),
    *("ffn_down_shexp", "ffn_gate_inp_shexp"),
)


def change(keys: ArchitectureKeys, config: ModelConfig) -> ModelConfig:
    """Return the configuration of a qwen35 file, of a Llama-like one. Raises ModelFormatError."""
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
    delta = DeltaConfig(
        n_key_heads=n_key_heads,
        n_value_heads=n_value_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        conv_size=keys.integer("ssm.conv_kernel", 1, MAX_CONV_SIZE),
        in_layer=_recurrent_layers(keys, n_layers, n_predicting),
        in_turn=True,
    )
    return qwen3_5.with_delta(config, delta)


def _recurrent_layers(keys: ArchitectureKeys, n_layers: int, n_predicting: int) -> tuple[bool, ...]:
    name = "attention.recurrent_layers"
    if keys.get(name) is None:
        name = "full_attention_interval"
        period = keys.integer(name, 1, MAX_LAYERS, qwen3_5.PERIOD)
        in_layer = tuple((layer + 1) % period != 0 for layer in range(n_layers))
    else:
        in_layer = tuple(keys.flags(name, n_layers + n_predicting)[:n_layers])
    if all(in_layer):
        raise keys.error(name, "a value with which one or more layers have attention")
    return in_layer


def rules(config: ModelConfig, _tensors: Mapping[str, Tensor]) -> Iterator[TensorRule]:
    """Yield a rule for every tensor, with GGUF's names as sources."""
    names = NAMES if config.moe is None else NAMES | SHARED_EXPERT_NAMES
    for rule in qwen3_5.rules(config, bias=False, norm_plus=0.0):
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
    yield from expert_rules(config)


def unused_tensors(config: ModelConfig) -> Collection[str]:
    """Return the names of tensors of layers that predict further tokens."""
    layers = range(config.n_layers, config.n_layers + _MOST_PREDICTING)
    return {f"blk.{layer}.{part}.weight" for layer in layers for part in _PREDICTING}
