"""Write GGUF files for tests: a checkpoint as llama.cpp's converter writes it, and bytes by hand.

Written with the `gguf` package, which is independent of pybatcher: an oracle for reading.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_gemma4 import GEMMA4_PARTS, add_gemma4, gemma4_divisors, gemma4_name
from gguf_lfm2 import add_lfm2, lfm2_name, lfm2_tensors
from gguf_qwen35 import QWEN35_PARTS, add_qwen35, qwen35_name, qwen35_tensors
from gpt_oss_files import gpt_oss_matrices
from numpy.typing import NDArray
from safetensors.torch import load_file

from bench.convert.to_gguf import LFM2_NAMES

SUPER_BLOCK_SHAPE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 2,
}
"""Sizes of a model whose rows are whole super-blocks."""

_PARTS = {
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
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "block_sparse_moe.experts.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.w3": "ffn_up_exps",
    "block_sparse_moe.experts.w2": "ffn_down_exps",
    "mlp.router": "ffn_gate_inp",
    "self_attn.sinks": "attn_sinks",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
}
_ARCHITECTURES = {  # others: as in config.json
    "qwen3_moe": "qwen3moe",
    "mixtral": "llama",
    "internlm3": "llama",
    "olmo3": "olmo2",
    "ministral3": "mistral3",
    "gpt_oss": "gpt-oss",
    "qwen3_vl": "qwen3vl",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "lfm2_moe": "lfm2moe",
}
_GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OWN_PARTS = {
    "gemma4": GEMMA4_PARTS,
    "gemma2": _GEMMA_NORMS,
    "gemma3": _GEMMA_NORMS,
    "gpt-oss": {"post_attention_layernorm": "post_attention_norm"},
    "olmo2": _GEMMA_NORMS,
    "qwen35": QWEN35_PARTS,
    "qwen35moe": QWEN35_PARTS,
    "lfm2": LFM2_NAMES,
    "lfm2moe": LFM2_NAMES,
}
_IN_PAIRS = ("llama", "granite", "smollm3", "mistral3")
_PLAIN = {torch.float32: Kind.F32, torch.float16: Kind.F16, torch.bfloat16: Kind.BF16}
_CONTROL, _USER_DEFINED, _UNUSED, _NORMAL = 3, 4, 5, 1


def gguf_name(name: str, architecture: str = "llama") -> str:
    """Return llama.cpp's name of a transformers tensor."""
    stem, _, kind = name.rpartition(".")
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if stem in whole:
        return f"{whole[stem]}.{kind}"
    if (own := lfm2_name(name) or gemma4_name(name) or qwen35_name(name)) is not None:
        return own
    _, _, layer, part = stem.split(".", 3)
    parts = {**_PARTS, **_OWN_PARTS.get(architecture, {})}
    return f"blk.{layer}.{parts[part]}.{kind}"


def quantise(weight: torch.Tensor, kind: Kind) -> NDArray[Any]:
    """Return the value for `GGUFWriter.add_tensor` of `weight` as `kind`.

    The package quantises to the plain and the 32-wide kinds. Blocks of the others are random bytes,
    with small numbers in the places of scales.
    """
    if kind == _PLAIN.get(weight.dtype) and kind != Kind.BF16:
        return weight.numpy()
    if kind == Kind.BF16:
        return weight.bfloat16().view(torch.uint16).numpy().view(np.uint8)
    try:
        return gguf.quants.quantize(weight.float().numpy(), kind)
    except NotImplementedError:
        n_elements, n_bytes = gguf.GGML_QUANT_SIZES[kind]
        *outer, columns = weight.shape
        rng = np.random.default_rng([*outer, columns, kind])
        return rng.integers(0, 0x28, (*outer, columns // n_elements * n_bytes), dtype=np.uint8)


def in_pairs(weight: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Permute a head's rows from halves to neighbouring pairs, as llama.cpp rotates."""
    halves = weight.reshape(n_heads, 2, len(weight) // n_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape).contiguous()


def write_gguf(
    directory: Path,
    target: Path,
    kind: Kind | Callable[[str], Kind] | None = None,
    *,
    pre: str = "gpt-2",
    tokenizer: bool = True,
    keys: dict[str, Any] | None = None,
    tensors_of_part: int = 0,
) -> Path:
    """Write the checkpoint of a Hugging Face directory as one GGUF file, or as several parts.

    kind: of the matrices, or a function from GGUF's tensor name to it; None: unchanged.
    pre: name of the pre-tokenizer.
    keys: metadata to add or replace; None as a value removes the key.
    tensors_of_part: the most tensors of a part; 0: one file. The parts have names of their own.
    """
    config = json.loads((directory / "config.json").read_text())
    architecture = config["model_type"].removesuffix("_text")
    architecture = _ARCHITECTURES.get(architecture, architecture)
    writer = gguf.GGUFWriter(target, architecture, split_max_tensors=tensors_of_part)
    _add_config(writer, config)
    if tokenizer:
        _add_tokenizer(writer, directory, config, pre)
    for key, value in (keys or {}).items():
        writer.kv_data[0].pop(key, None)
        if value is not None:
            _add_key(writer, key, value)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    divisors = rope_divisors(config)
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    for length in ("short", "long"):
        factors = config["rope_parameters"].get(f"{length}_factor")
        if factors is not None:
            writer.add_tensor(f"rope_factors_{length}.weight", np.array(factors, np.float32))
    tensors = load_file(directory / "model.safetensors")
    if architecture == "gpt-oss":
        tensors = gpt_oss_matrices(tensors)
    if architecture in ("qwen35", "qwen35moe"):
        tensors = dict(qwen35_tensors(tensors, config))
    if architecture in ("lfm2", "lfm2moe"):
        tensors = dict(lfm2_tensors(tensors))
    for name, weight in _with_stacked_experts(tensors):
        if architecture in _IN_PAIRS and name.split(".")[-2] in heads:
            weight = in_pairs(weight, heads[name.split(".")[-2]])
        given = gguf_name(name, architecture)
        chosen = kind(given) if callable(kind) else kind
        is_small = any(part in given for part in ("ffn_gate_inp", "ssm_conv1d", "shortconv.conv"))
        if weight.ndim == 1 or is_small or given.endswith(".bias"):
            plus = 1.0 if architecture in ("gemma2", "gemma3") else 0.0
            writer.add_tensor(given, (weight.float() + plus).numpy())
            continue
        chosen = _PLAIN[weight.dtype] if chosen is None else chosen
        writer.add_tensor(given, quantise(weight, chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _with_stacked_experts(
    tensors: dict[str, torch.Tensor],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all tensors; those of a layer's experts as one, (experts, n_out, n_in)."""
    experts: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(.*\.experts)\.(\d+)(\..*)", name)
        if found is None:
            yield name, tensor
        else:
            experts.setdefault(found[1] + found[3], {})[int(found[2])] = tensor
    for name, parts in experts.items():
        yield name, torch.stack([parts[index] for index in sorted(parts)])


def _add_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    if "intermediate_size" in config:
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps") or config["norm_eps"])
    if config.get("num_local_experts"):
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if config.get("moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if config.get("head_dim") is not None:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_rope_dimension_count(config["head_dim"])
    rope = config["rope_parameters"]
    if "full_attention" in rope:  # the converter writes the frequencies of these layers alone
        rope = rope["full_attention"]
    _add_own_config(writer, config)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _add_own_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    architecture = config["model_type"]
    if architecture.startswith("gemma"):
        writer.add_sliding_window(config["sliding_window"])
        if config["final_logit_softcapping"] is not None:
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if architecture == "gemma4_text":
        add_gemma4(writer, config)
    if architecture in ("qwen3_5_text", "qwen3_5_moe_text"):
        add_qwen35(writer, config)
    if architecture in ("lfm2", "lfm2_moe"):
        add_lfm2(writer, config)
    if architecture == "qwen3_vl_text":
        writer.add_rope_dimension_sections([*config["rope_parameters"]["mrope_section"], 0])
        writer.add_num_deepstack_layers(config["n_deepstack_layers"])
    if architecture == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if architecture == "olmo3":
        writer.add_sliding_window(config["sliding_window"])
        kinds = config["layer_types"]
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if architecture == "ministral3":
        rope = config["rope_parameters"]
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if architecture == "gpt_oss":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if architecture == "phi3":
        _add_phi3(writer, config, config["rope_parameters"])


def _add_phi3(writer: gguf.GGUFWriter, config: dict[str, Any], rope: dict[str, Any]) -> None:
    original = config["original_max_position_embeddings"]
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    writer.add_sliding_window(config["sliding_window"] or 0)
    if rope["rope_type"] == "longrope":
        scale = config["max_position_embeddings"] / original
        factor = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
        writer.add_rope_scaling_attn_factors(factor)


def rope_divisors(config: dict[str, Any]) -> NDArray[np.float32] | None:
    """Return the divisors of frequencies as the converter writes them: (head_dim / 2,)."""
    rope = config["rope_parameters"]
    if config.get("model_type") == "gemma4_text":
        return gemma4_divisors(config)
    if rope.get("rope_type") != "llama3":
        return None
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    old = rope["original_max_position_embeddings"]
    divisors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (index / head_dim)
        if wavelength < old / high:
            divisors.append(1.0)
        elif wavelength > old / low:
            divisors.append(rope["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, np.float32)


def _add_tokenizer(
    writer: gguf.GGUFWriter, directory: Path, config: dict[str, Any], pre: str
) -> None:
    """Add a byte-level tokenizer.json, as the converter does."""
    described = json.loads((directory / "tokenizer.json").read_text())
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    tokens, kinds = tokens_and_kinds(described, config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merge_lines(described))
    ids = {token: index for index, token in enumerate(tokens)}
    writer.add_bos_token_id(ids[settings["bos_token"]])
    writer.add_eos_token_id(ids[settings["eos_token"]])
    if settings.get("pad_token") is not None:
        writer.add_pad_token_id(ids[settings["pad_token"]])
    writer.add_add_bos_token("TemplateProcessing" in json.dumps(described["post_processor"]))
    if settings.get("chat_template") is not None:
        writer.add_chat_template(settings["chat_template"])


def tokens_and_kinds(described: dict[str, Any], vocab_size: int) -> tuple[list[str], list[int]]:
    """Return token and type of every id; ids without a token become unused ones."""
    by_id = {index: (token, _NORMAL) for token, index in described["model"]["vocab"].items()}
    for added in described["added_tokens"]:
        by_id[added["id"]] = (added["content"], _CONTROL if added["special"] else _USER_DEFINED)
    entries = [by_id.get(i, (f"[PAD{i}]", _UNUSED)) for i in range(vocab_size)]
    return [token for token, _ in entries], [kind for _, kind in entries]


def merge_lines(described: dict[str, Any]) -> list[str]:
    merges = described["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]


def _add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_int64(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


# -- bytes by hand ---------------------------------------------------------------------------


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + values


def tensor(name: str | bytes, shape: list[int], kind: int = 0, offset: int = 0) -> bytes:
    """Return the bytes of a tensor entry. shape: innermost first, as in the file."""
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def raw_gguf(
    keys: list[bytes],
    tensors: list[bytes],
    data: bytes = b"",
    *,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """Return a file made of `pair` and `tensor` parts; the counts may be wrong."""
    n_keys = len(keys) if n_keys is None else n_keys
    n_tensors = len(tensors) if n_tensors is None else n_tensors
    header = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys)
    header += b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % alignment) + data
