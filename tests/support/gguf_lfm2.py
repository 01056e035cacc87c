"""What llama.cpp's converter writes of LFM2: its keys and names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gguf
import torch

__all__ = ["LFM2_PARTS", "add_lfm2", "lfm2_name", "lfm2_tensors"]

LFM2_PARTS = {
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "feed_forward.gate": "ffn_gate_inp",
    "feed_forward.experts.w1": "ffn_gate_exps",
    "feed_forward.experts.w3": "ffn_up_exps",
    "feed_forward.experts.w2": "ffn_down_exps",
}
_SIGMOID = 2  # of llama.cpp's gating functions


def lfm2_name(name: str) -> str | None:
    """Return llama.cpp's name of a tensor that is named by no part of a layer."""
    if name == "model.embedding_norm.weight":
        return "token_embd_norm.weight"
    _, _, layer, part = (name.split(".", 3) + [""] * 3)[:4]
    return f"blk.{layer}.exp_probs_b.bias" if part == "feed_forward.expert_bias" else None


def add_lfm2(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Add the keys of LFM2, in place of those that all models have."""
    writer.kv_data[0].pop(f"{writer.arch}.attention.head_count_kv")
    n_kv_heads = config["num_key_value_heads"]
    writer.add_head_count_kv([0 if k == "conv" else n_kv_heads for k in config["layer_types"]])
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_vocab_size(config["vocab_size"])
    if writer.arch == "lfm2moe":
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_uint32(f"{writer.arch}.expert_gating_func", _SIGMOID)
        writer.add_expert_weights_scale(config["routed_scaling_factor"])


def lfm2_tensors(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors as llama.cpp has them, by transformers' names."""
    for name, weight in tensors.items():
        yield name, weight.squeeze(1) if name.endswith("conv.conv.weight") else weight
