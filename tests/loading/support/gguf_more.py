"""Write checkpoints of families that are each one file as llama.cpp's converter writes them.

Names of tensors are those of the `gguf` package's map, which the converter uses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf_files import rope_divisors
from safetensors.torch import load_file

__all__ = ["write_more_gguf"]

_ARCHITECTURES = {
    "qwen2_moe": "qwen2moe",
    "minimax_m2": "minimax-m2",
    "glm4_moe": "glm4moe",
    "ernie4_5_moe": "ernie4_5-moe",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe",
}
"""Of files, by `model_type`; others have the same name."""


def write_more_gguf(directory: Path, target: Path, **keys: Any) -> Path:
    """Write the checkpoint of a directory as a GGUF file without a tokenizer.

    keys: metadata of the architecture to add; `__` in a name is a dot.
    """
    config = json.loads((directory / "config.json").read_text())
    name = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    architecture = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[name]
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(target, name)
    _add_config(writer, config)
    for key, value in keys.items():
        _add_key(writer, f"{name}.{key.replace('__', '.')}", value)
    tensors = load_file(directory / "model.safetensors")
    for number in ("alpha_p", "alpha_n", "beta", "eps") if name == "apertus" else ():
        names_of_layers = [
            f"model.layers.{layer}.mlp.act_fn.{number}"
            for layer in range(config["num_hidden_layers"])
        ]
        values = [tensors.pop(source).item() for source in names_of_layers]
        writer.add_array(f"xielu.{number}", values)
    for source, weight in _stacked(tensors, config):
        source = re.sub("([a-z])_bias$", r"\1.bias", source)
        given = names.get_name(source, try_suffixes=(".weight", ".bias"))
        assert given is not None, source
        if name == "arcee" and re.search(r"attn_[qk]\.", given):
            weight = _in_pairs(weight, config["head_dim"])
        writer.add_tensor(given, np.ascontiguousarray(weight.float().squeeze().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _in_pairs(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Put row i + head_dim / 2 of each head after row i, as the converter does for Llamas."""
    heads = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return heads.transpose(1, 2).reshape(weight.shape)


def _add_key(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    writer.kv_data[0].pop(name, None)
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    else:
        writer.add_float32(name, value)


def _add_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    model_type = config["model_type"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    epsilon = config.get("layer_norm_eps") or config.get("norm_epsilon")
    if epsilon is None:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(epsilon)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    rope = config["rope_parameters"]
    base, alpha = rope["rope_theta"], rope.get("alpha")
    writer.add_rope_freq_base(base * (alpha or 1.0) ** (head_dim / (head_dim - 2)))
    if alpha:
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(1)
        writer.add_rope_scaling_orig_ctx_len(config["max_position_embeddings"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    if model_type == "cohere2":
        writer.add_logit_scale(config["logit_scale"])
    if model_type in ("exaone4", "cohere2") and config["sliding_window"]:
        kinds = config["layer_types"]
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
    divisors = rope_divisors(config)
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    _add_experts(writer, config)


def _add_experts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    n_experts = config.get("num_experts") or config.get("num_local_experts")
    n_experts = n_experts or config.get("n_routed_experts") or config.get("moe_num_experts")
    if n_experts is None:
        return
    writer.add_expert_count(n_experts)
    names = ("num_experts_per_tok", "moe_k", "moe_topk")
    writer.add_expert_used_count(next(config[name] for name in names if name in config))
    if config["model_type"] == "ernie4_5_moe":
        writer.add_expert_shared_count(config["moe_num_shared_experts"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
    if config["model_type"] == "hunyuan_v1_moe":
        writer.add_expert_shared_count(1)
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["intermediate_size"])
    if config["model_type"] == "minimax_m2":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config["model_type"] == "glm4_moe":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def _stacked(
    tensors: dict[str, torch.Tensor], config: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors; the experts of a layer as one, (experts, n_out, n_in)."""
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(.*\.experts)\.(\d+)(\..*)", name)
        if found is None:
            yield name, tensor
        else:
            experts.setdefault(found[1] + found[3], {})[int(found[2])] = tensor
    for name, parts in experts.items():
        yield name, torch.stack([parts[index] for index in sorted(parts)])
