"""What llama.cpp's converter writes of Qwen 3.5: its keys, names, and order of value heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gguf
import torch

__all__ = ["QWEN35_PARTS", "add_qwen35", "qwen35_name", "qwen35_tensors"]

QWEN35_PARTS = {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
_OF_LAYER = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}


def qwen35_name(name: str) -> str | None:
    """Return llama.cpp's name of a tensor that is named by no part of a layer."""
    _, _, layer, part = (name.split(".", 3) + [""] * 3)[:4]
    return f"blk.{layer}.{_OF_LAYER[part]}" if part in _OF_LAYER else None


def add_qwen35(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Add the keys of Qwen 3.5, in place of those that all models have."""
    name = writer.arch
    if name == "qwen35moe":
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    rope = config["rope_parameters"]
    n_heads, head_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(n_heads)
    writer.add_ssm_inner_size(n_heads * head_dim)
    recurrent = [kind == "linear_attention" for kind in config["layer_types"]]
    writer.add_array(f"{name}.attention.recurrent_layers", recurrent)
    key = f"{name}.rope.dimension_count"
    writer.kv_data[0].pop(key, None)
    writer.add_uint32(key, int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])


def qwen35_tensors(
    tensors: Mapping[str, torch.Tensor], config: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors as llama.cpp has them, by transformers' names."""
    key_size = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    for name, weight in tensors.items():
        part = name.split(".", 3)[-1]
        if part == "mlp.shared_expert_gate.weight":
            yield name, weight[0]
        elif part == "mlp.experts.gate_up_proj":
            inner = weight.shape[1] // 2
            yield name.replace("gate_up_proj", "gate_proj.weight"), weight[:, :inner]
            yield name.replace("gate_up_proj", "up_proj.weight"), weight[:, inner:]
        elif "linear_attn" not in part:
            is_norm = name.endswith(("norm.weight", "layernorm.weight"))
            yield name, weight.float() + 1 if is_norm else weight
        elif part == "linear_attn.norm.weight":
            yield name, weight
        elif part == "linear_attn.A_log":
            yield name, _in_turn(-torch.exp(weight.float()), config)
        elif part.startswith(("linear_attn.in_proj_qkv", "linear_attn.conv1d")):
            flat = weight.squeeze(1) if weight.ndim == 3 else weight
            values = _in_turn(flat[2 * key_size :], config)
            yield name, torch.cat([flat[: 2 * key_size], values])
        elif part.startswith("linear_attn.out_proj"):
            yield name, _in_turn(weight.T, config).T.contiguous()
        else:
            yield name, _in_turn(weight, config)


def _in_turn(weight: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """Put rows of value heads that share a key head apart: the first of each key head first."""
    n_keys, n_values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    of_heads = weight.reshape(n_keys, n_values // n_keys, -1, *weight.shape[1:])
    return of_heads.swapaxes(0, 1).reshape(weight.shape).contiguous()
