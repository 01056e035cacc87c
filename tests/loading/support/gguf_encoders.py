"""Write encoders of Hugging Face directories as GGUF files, with the `gguf` package's names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_files import quantise
from safetensors.torch import load_file

__all__ = ["ENCODERS_OF_GGUF", "write_encoder_gguf"]

_ARCHITECTURES = {
    "bert": gguf.MODEL_ARCH.BERT,
    "roberta": gguf.MODEL_ARCH.BERT,
    "xlm-roberta": gguf.MODEL_ARCH.BERT,
    "modernbert": gguf.MODEL_ARCH.MODERN_BERT,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA_EMBEDDING,
}
ENCODERS_OF_GGUF = ("bert", "roberta", "modernbert", "embedding_gemma")
"""Names of `checkpoints.make_checkpoint`."""
_ROBERTAS = ("roberta", "xlm-roberta")


def write_encoder_gguf(
    directory: Path,
    target: Path,
    kind: Kind = Kind.F32,
    *,
    keys: dict[str, Any] | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
    pooling: gguf.PoolingType | None = gguf.PoolingType.MEAN,
) -> Path:
    """Write the checkpoint as one GGUF file with a tokenizer of whole words.

    kind: of the matrices. keys: metadata to add. tensors: to add, by GGUF's names.
    """
    config = json.loads((directory / "config.json").read_text())
    architecture = _ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    _add_config(writer, config)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    _add_tokenizer(writer, config["vocab_size"])
    for key, value in (keys or {}).items():
        writer.kv_data[0].pop(key, None)
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    first = config["pad_token_id"] + 1 if config["model_type"] in _ROBERTAS else 0
    for name, weight in load_file(directory / "model.safetensors").items():
        if "pooler" in name:
            continue
        if "position_embeddings" in name:
            weight = weight[first:].contiguous()
        if config["model_type"] == "gemma3_text":
            name = f"model.{name}"
            if weight.ndim == 1:
                weight = weight + 1
        given = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert given is not None, name
        of_tokens = weight.ndim == 1 or given.startswith(("position_embd", "token_types"))
        chosen = Kind.F32 if of_tokens else kind
        writer.add_tensor(given, quantise(weight, chosen), raw_dtype=chosen)
    for name, weight in (tensors or {}).items():
        writer.add_tensor(name, weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _add_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    n_positions = config["max_position_embeddings"]
    if config["model_type"] in _ROBERTAS:
        n_positions -= config["pad_token_id"] + 1
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(n_positions)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    if config["model_type"] == "gemma3_text":
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_freq_base(config["rope_parameters"]["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
        return
    writer.add_causal_attention(False)
    if config["model_type"] == "modernbert":
        writer.add_layer_norm_eps(config["norm_eps"])
        writer.add_sliding_window(config["local_attention"])
        writer.add_rope_freq_base(config["rope_parameters"]["full_attention"]["rope_theta"])
        writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
        return
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_token_type_count(config["type_vocab_size"])


def _add_tokenizer(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list([*special, *(f"\u2581w{i}" for i in range(4, vocab_size))])
    writer.add_token_types([3] * 4 + [1] * (vocab_size - 4))
    for add, index in (
        (writer.add_pad_token_id, 0),
        (writer.add_unk_token_id, 1),
        (writer.add_sep_token_id, 3),
        (writer.add_bos_token_id, 2),
        (writer.add_eos_token_id, 3),
    ):
        add(index)
