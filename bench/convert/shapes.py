"""The shapes of published models, as the fields of their `config.json`.

Speed does not depend on the values of the weights: a checkpoint of random numbers in the shape of a
model is as fast as the model.
"""

from __future__ import annotations

from typing import Any

__all__ = ["ALL_SHAPES", "DTYPES", "GPT2", "SHAPES", "config_of"]

DTYPES = ("bf16", "int8", "int4")
"""Dtypes of weights that every engine supports in some form."""

_COMMON: dict[str, Any] = {
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 256,
    "eos_token_id": 256,
}

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": _COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "tie_word_embeddings": False,
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "llama-3.2-1b": _COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131_072,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "qwen2.5-0.5b": _COMMON
    | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32_768,
        "rope_theta": 1_000_000.0,
        "use_sliding_window": False,
    },
    # The shape has two of 48 layers and a small vocabulary, because the experts are measured.
    "qwen3-30b-a3b-cut": _COMMON
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 4096,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40_960,
        "rope_theta": 1_000_000.0,
        "use_sliding_window": False,
    },
    "qwen3.5-0.8b": _COMMON
    | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": 248_320,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262_144,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 6,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
        },
    },
    "lfm2-1.2b": _COMMON
    | {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "vocab_size": 65_536,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "block_auto_adjust_ff_dim": False,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "norm_eps": 1e-5,
        "conv_L_cache": 3,
        "layer_types": [
            *["conv", "conv", "full_attention"] * 3,
            *["conv", "full_attention"] * 3,
            "conv",
        ],
        "max_position_embeddings": 128_000,
        "rope_theta": 1_000_000.0,
    },
    # The shape has six of 24 layers, of which the first two are dense, and a small vocabulary.
    "lfm2-8b-a1b-cut": _COMMON
    | {
        "architectures": ["Lfm2MoeForCausalLM"],
        "model_type": "lfm2_moe",
        "vocab_size": 4096,
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "num_hidden_layers": 6,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1792,
        "num_dense_layers": 2,
        "norm_eps": 1e-5,
        "conv_L_cache": 3,
        "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "conv"],
        "max_position_embeddings": 128_000,
        "rope_theta": 1_000_000.0,
    },
    "smollm2-135m": _COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "rope_theta": 100_000.0,
    },
    "gemma-3-1b": _COMMON
    | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "vocab_size": 262_144,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32_768,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    },
}

GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "torch_dtype": "bfloat16",
    "vocab_size": 50_257,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_positions": 1024,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "tie_word_embeddings": True,
    "bos_token_id": 256,
    "eos_token_id": 256,
}
"""GPT-2's config.json has other field names, so it is only for tools that ask the engine for sizes.
"""

ALL_SHAPES = (*SHAPES, "gpt2")
"""The names of all shapes."""


def config_of(shape: str) -> dict[str, Any]:
    """Return the config.json of a shape."""
    return GPT2 if shape == "gpt2" else SHAPES[shape]
