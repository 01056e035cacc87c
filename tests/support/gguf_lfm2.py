"""What llama.cpp's converter writes of LFM2: its keys and names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gguf
import torch

from bench.convert.to_gguf import write_short_convolutions

__all__ = ["add_lfm2", "lfm2_name", "lfm2_tensors"]


def lfm2_name(name: str) -> str | None:
    """Return llama.cpp's name of a tensor that is named by no part of a layer."""
    if name == "model.embedding_norm.weight":
        return "token_embd_norm.weight"
    _, _, layer, part = (name.split(".", 3) + [""] * 3)[:4]
    return f"blk.{layer}.exp_probs_b.bias" if part == "feed_forward.expert_bias" else None


def add_lfm2(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Add the keys of LFM2, in place of those that all models have."""
    writer.kv_data[0].pop(f"{writer.arch}.attention.head_count_kv")
    write_short_convolutions(writer, config)
    writer.add_vocab_size(config["vocab_size"])
    if writer.arch == "lfm2moe":
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])


def lfm2_tensors(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors as llama.cpp has them, by transformers' names."""
    for name, weight in tensors.items():
        yield name, weight.squeeze(1) if name.endswith("conv.conv.weight") else weight
