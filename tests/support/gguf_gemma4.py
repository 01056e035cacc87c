"""What llama.cpp's converter writes of Gemma 4 alone: its keys, and names of its tensors."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

__all__ = ["GEMMA4_PARTS", "add_gemma4", "gemma4_divisors", "gemma4_name"]

GEMMA4_PARTS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "router.proj": "ffn_gate_inp",
}
_OF_LAYER = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}
_WHOLE = {
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}


def gemma4_name(name: str) -> str | None:
    """Return llama.cpp's name of a tensor that is named by no part of a layer."""
    if name in _WHOLE:
        return _WHOLE[name]
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{_OF_LAYER[part]}" if part in _OF_LAYER else None


def _full_head_dim(config: dict[str, Any]) -> int:
    full = config["layer_types"].index("full_attention")
    head_dim: int = config["per_layer_config"].get(str(full), config).get("head_dim")
    return head_dim or int(config["head_dim"])


def add_gemma4(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Add the keys of Gemma 4, in place of those that all models have."""
    n_layers, types = config["num_hidden_layers"], config["layer_types"]
    own = [config["per_layer_config"].get(str(layer), {}) for layer in range(n_layers)]
    kv_heads = [of.get("num_key_value_heads", config["num_key_value_heads"]) for of in own]
    n_own = n_layers - config["num_kv_shared_layers"]
    doubled = config["use_double_wide_mlp"]
    inner = config["intermediate_size"]
    full = _full_head_dim(config)
    for key in (
        *("attention.key_length", "attention.value_length", "attention.head_count_kv"),
        *("rope.dimension_count", "feed_forward_length"),
    ):
        writer.kv_data[0].pop(f"gemma4.{key}", None)
    writer.add_head_count_kv(kv_heads)
    widths = [inner * (2 if doubled and i >= n_own else 1) for i in range(n_layers)]
    writer.add_feed_forward_length(widths if doubled else inner)
    for add, size in (
        (writer.add_key_length, full),
        (writer.add_value_length, full),
        (writer.add_rope_dimension_count, full),
        (writer.add_key_length_swa, config["head_dim"]),
        (writer.add_value_length_swa, config["head_dim"]),
        (writer.add_rope_dimension_count_swa, config["head_dim"]),
    ):
        add(size)
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in types])
    theta = config["rope_parameters"]["sliding_attention"]["rope_theta"]
    writer.add_rope_freq_base_swa(theta)
    if config["enable_moe_block"]:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])


def gemma4_divisors(config: dict[str, Any]) -> NDArray[np.float32]:
    """Return the divisors of the frequencies of layers that see all: (head_dim / 2,)."""
    half = _full_head_dim(config) // 2
    part = config["rope_parameters"]["full_attention"].get("partial_rotary_factor", 1.0)
    turning = int(2 * half * part / 2)
    return np.array([1.0] * turning + [1e30] * (half - turning), np.float32)
