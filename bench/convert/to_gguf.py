"""Write a GGUF file with the weights of a checkpoint, for llama.cpp.

    .venv-rivals/bin/python -m bench.to_gguf bench/checkpoints/llama-3.2-1b int8

Supports the families of bench/convert/shapes.py. llama.cpp rotates neighbouring pairs in the
`llama` family where the checkpoint rotates halves, so that the rows of q and k are permuted; it
needs vectors in f32, and Llama 3's rope scaling as one factor per frequency. Without a
tokenizer.json the file has no vocabulary: prompts and outputs are token ids.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

QUANTISED = {
    "int8": "Q8_0",
    "int4": "Q4_0",
    "q4_1": "Q4_1",
    "q5_1": "Q5_1",
    "iq4_xs": "IQ4_XS",
    "q2_k": "Q2_K",
    "q3_k_m": "Q3_K_M",
    "q4_k_m": "Q4_K_M",
    "q5_k_m": "Q5_K_M",
    "q6_k": "Q6_K",
    "mxfp4": "MXFP4_MOE",
}
"""llama.cpp's names of file types. The types for int8 and int4 are pure: one type for all matrices.
"""
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
ENDS = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "embedding_norm": "token_embd_norm",
    "lm_head": "output",
}
"""The names of tensors outside of layers."""
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
QWEN35_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
LFM2_NAMES = {
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
OWN_NAMES = {
    "gemma3_text": GEMMA_NAMES,
    "qwen3_5_text": QWEN35_NAMES,
    "lfm2": LFM2_NAMES,
    "lfm2_moe": LFM2_NAMES,
}
ARCHITECTURES = {
    "gemma3_text": "gemma3",
    "qwen3_moe": "qwen3moe",
    "qwen3_5_text": "qwen35",
    "lfm2_moe": "lfm2moe",
}
"""llama.cpp's names of architectures, where they differ from config.json."""
IN_F32 = ("mlp.gate.weight", "feed_forward.gate.weight", "conv1d.weight", "conv.conv.weight")
"""The suffixes of matrices that llama.cpp stores in f32."""


def gguf_name(name: str, model_type: str) -> str:
    """Return llama.cpp's name of a tensor of a checkpoint of that `model_type`."""
    stem, _, kind = name.removeprefix("model.").rpartition(".")
    if stem in ENDS:
        return f"{ENDS[stem]}.{kind}"
    _, layer, part = stem.split(".", 2)
    if part == "linear_attn":
        return f"blk.{layer}." + {"A_log": "ssm_a", "dt_bias": "ssm_dt.bias"}[kind]
    if part == "feed_forward":
        return f"blk.{layer}." + {"expert_bias": "exp_probs_b.bias"}[kind]
    names = NAMES | OWN_NAMES.get(model_type, {})
    return f"blk.{layer}.{names[part]}.{kind}"


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Return the bf16 tensors of a safetensors file, as uint16 views of the mapped file."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    header_size = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8 : 8 + header_size].tobytes())
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + header_size + offset for offset in entry["data_offsets"])
            tensors[name] = data[begin:end].view(np.uint16).reshape(entry["shape"])
    return tensors


def with_stacked_experts(
    tensors: dict[str, np.ndarray], n_experts: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield all tensors, with a layer's experts stacked as one tensor (experts, n_out, n_in)."""
    for name, tensor in tensors.items():
        if ".experts." not in name:
            yield name, tensor
        elif ".experts.0." in name:
            before, after = name.split(".experts.0.")
            names = [f"{before}.experts.{expert}.{after}" for expert in range(n_experts)]
            yield f"{before}.experts.{after}", np.stack([tensors[one] for one in names])


def neighbouring_pairs(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """Permute rows of q or k (n_heads * head_dim, hidden): a head's halves to pairs."""
    half = weight.shape[0] // n_heads // 2
    paired = weight.reshape(n_heads, 2, half, -1).swapaxes(1, 2)
    return np.ascontiguousarray(paired.reshape(weight.shape))


def llama3_factors(config: dict[str, Any]) -> np.ndarray:
    """Return Llama 3's divisor of each rotary frequency: (head_dim / 2,) f32."""
    scaling = config["rope_scaling"]
    half = config["head_dim"] // 2
    original = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    factors = np.empty(half, np.float32)
    for i in range(half):
        wavelength = 2 * math.pi * config["rope_theta"] ** (i / half)
        smooth = (original / wavelength - low) / (high - low)
        smooth = min(max(smooth, 0.0), 1.0)
        factors[i] = 1.0 / ((1.0 - smooth) / scaling["factor"] + smooth)
    return factors


def write_metadata(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    is_lfm2 = config["model_type"] in ("lfm2", "lfm2_moe")
    if is_lfm2:
        write_short_convolutions(writer, config)
    else:
        writer.add_head_count_kv(config["num_key_value_heads"])
    rope = config.get("rope_parameters", config)
    writer.add_rope_dimension_count(
        int(config["head_dim"] * rope.get("partial_rotary_factor", 1.0))
    )
    if config["model_type"] in ("gemma3_text", "qwen3_moe", "qwen3_5_text"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] in ("qwen3_moe", "lfm2_moe"):
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if config["model_type"] == "qwen3_5_text":
        write_recurrent_layers(writer, config)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["norm_eps" if is_lfm2 else "rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def write_short_convolutions(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    n_kv_heads = config["num_key_value_heads"]
    writer.add_head_count_kv([0 if k == "conv" else n_kv_heads for k in config["layer_types"]])
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    if config["model_type"] == "lfm2_moe":
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_uint32("lfm2moe.expert_gating_func", 2)  # the value for sigmoids


def write_recurrent_layers(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    n_heads = config["linear_num_value_heads"]
    if n_heads != config["linear_num_key_heads"]:
        raise ValueError("value heads that share a key head would have to be put in turn")
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(n_heads)
    writer.add_ssm_time_step_rank(n_heads)
    writer.add_ssm_inner_size(n_heads * config["linear_value_head_dim"])
    recurrent = [kind == "linear_attention" for kind in config["layer_types"]]
    writer.add_array("qwen35.attention.recurrent_layers", recurrent)
    writer.add_rope_dimension_sections([*config["rope_parameters"]["mrope_section"], 0])


def write_vocabulary(writer: gguf.GGUFWriter, directory: Path, config: dict[str, Any]) -> None:
    """Write the byte-level vocabulary of tokenizer.json, and the chat template if there is one.

    Without that file, write that there is no vocabulary.
    """
    path = directory / "tokenizer.json"
    if not path.exists():
        writer.add_tokenizer_model("no_vocab")
        return
    tokenizer = json.loads(path.read_text())
    words = {i: word for word, i in tokenizer["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    tokens, types = [], []
    for i in range(config["vocab_size"]):
        tokens.append(special.get(i) or words.get(i) or f"<unused {i}>")
        kind = gguf.TokenType.NORMAL if i in words else gguf.TokenType.CONTROL
        types.append(gguf.TokenType.CONTROL if i in special else kind)
    merges = tokenizer["model"]["merges"]
    if not merges:  # llama.cpp needs a merge, and the merged text has to be a token
        merges = [["e", "e"]]
        if "ee" not in tokens:
            tokens[-1], types[-1] = "ee", gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in merges])
    writer.add_eos_token_id(config["eos_token_id"])
    template = directory / "chat_template.jinja"
    if template.exists():
        writer.add_chat_template(template.read_text())


def to_gguf(directory: Path) -> Path:
    """Write the bf16 file beside the checkpoint if it does not exist; return its path."""
    target = directory / "model-bf16.gguf"
    if target.exists():
        return target
    config = json.loads((directory / "config.json").read_text())
    unfinished = target.with_suffix(".part")
    kind = config["model_type"]
    writer = gguf.GGUFWriter(unfinished, ARCHITECTURES.get(kind, kind))
    write_metadata(writer, config)
    write_vocabulary(writer, directory, config)
    if config.get("rope_scaling"):
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    tensors = read_tensors(directory / "model.safetensors")
    for name, tensor in with_stacked_experts(tensors, config.get("num_experts", 0)):
        part = name.split(".")[-2]
        tensor = tensor[:, 0] if tensor.ndim == 3 and part in ("conv1d", "conv") else tensor
        in_f32 = name.endswith(IN_F32)
        if tensor.ndim == 1 or in_f32:
            numbers = (tensor.astype(np.uint32) << 16).view(np.float32)
            adds_one = kind in ("gemma3_text", "qwen3_5_text")
            if adds_one and name.endswith("norm.weight") and "linear_attn" not in name:
                numbers = numbers + np.float32(1.0)
            if name.endswith("A_log"):
                numbers = -np.exp(numbers)
            writer.add_tensor(gguf_name(name, kind), numbers)
            continue
        if kind == "llama" and part in heads:
            tensor = neighbouring_pairs(tensor, heads[part])
        writer.add_tensor(
            gguf_name(name, kind), tensor.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return unfinished.rename(target)


def quantise(source: Path, target: Path, dtype: str) -> None:
    """Quantise with llama.cpp's own quantiser; every matrix alike for "int8" and "int4"."""
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{QUANTISED[dtype]}")
    params.pure = dtype in ("int8", "int4")
    params.allow_requantize = True
    unfinished = target.with_suffix(".part")
    names = str(source).encode(), str(unfinished).encode()
    if llama_cpp.llama_model_quantize(*names, params) != 0:
        raise RuntimeError(f"llama.cpp cannot quantise {source} to {dtype}")
    unfinished.rename(target)


def gguf_of(directory: Path, dtype: str) -> Path:
    """Return the GGUF file of `dtype` beside the checkpoint; make it if it does not exist."""
    source = to_gguf(directory)
    target = directory / f"model-{dtype}.gguf"
    if not target.exists():
        quantise(source, target, dtype)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("dtype", choices=["bf16", *QUANTISED])
    arguments = parser.parse_args()
    print(gguf_of(arguments.directory, arguments.dtype))


if __name__ == "__main__":
    main()
