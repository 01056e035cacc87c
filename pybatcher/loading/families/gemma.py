"""Gemma 2 and 3: norms before and after each block, tanh GELU, windows in most layers.

Norms multiply by 1 + weight; the token embedding is multiplied by the root of its width. Gemma 2
bounds scores and logits; Gemma 3 norms q and k of each head, and turns them otherwise in layers
that see a window. EmbeddingGemma is a Gemma 3 that is an encoder (`use_bidirectional_attention`). A
Gemma 3 with images has its text model inside, which alone is read. Fields that a config.json
leaves out have transformers' defaults: Google's files leave out many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..checkpoints.blueprint import TEXT_PREFIXES, Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.layer_types import read_ropes, read_sliding_layers
from ..checkpoints.limits import MAX_POSITIONS, MAX_VOCABULARY
from ..checkpoints.llama_config import llama_config, read_sizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.rope import read_rope
from ..checkpoints.tensors import TensorRule
from . import llama

__all__ = ["NORMS", "gguf_rules", "read", "read_multimodal"]

NORMS = {
    "attn_norm": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
"""transformers' names of a layer's norms, by canonical name."""
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_DEFAULTS_OF_2 = {
    **_DEFAULTS,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


def read(fields: Fields) -> Blueprint:
    """Return the blueprint of a gemma2 or gemma3_text config.json. Raises ModelFormatError."""
    is_2 = fields.text("model_type") == "gemma2"
    fields = fields.with_defaults(_DEFAULTS_OF_2 if is_2 else _DEFAULTS)
    config = _read_2(fields) if is_2 else _read_3(fields)
    bias = fields.boolean("attention_bias", False)
    rules = llama.rules(
        config,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=False,
        norms=NORMS,
        qk_norm=not is_2,
        norm_plus=1.0,
    )
    tied = fields.boolean("tie_word_embeddings", True)
    return Blueprint(
        config, tuple(rules), tied, generates=config.causal, rounds_embedding_scale=True
    )


def read_multimodal(fields: Fields) -> Blueprint:
    """Return the blueprint of the text part of a gemma3 config.json. Raises ModelFormatError."""
    text = fields.child("text_config").with_defaults({"model_type": "gemma3_text"})
    text.refuse_unless("model_type", "gemma3_text")
    return replace(read(text), text_prefixes=TEXT_PREFIXES)


def gguf_rules(
    config: ModelConfig, *, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> Iterator[TensorRule]:
    """Yield the rules of a gemma2 or gemma3 GGUF file, whose norms have the 1 in their weights."""
    return llama.rules(
        config,
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        norms=NORMS,
        qk_norm=config.architecture == "gemma3",
    )


def _read_2(fields: Fields) -> ModelConfig:
    fields.refuse_unless("use_bidirectional_attention", False)
    config = _read_common(fields, "gemma2", period=2)
    rope = read_rope(fields, config.head_dim, config.max_position_embeddings)
    return replace(
        config,
        ropes=(rope,),
        attention_softcap=fields.number("attn_logit_softcapping", 1e-3, 1e6, 0.0),
    )


def _read_3(fields: Fields) -> ModelConfig:
    fields.refuse_unless("attn_logit_softcapping")
    config = _read_common(fields, "gemma3", period=6)
    thetas = (("rope_theta", 1e6), ("rope_local_base_freq", 1e4))
    ropes = read_ropes(fields, config.head_dim, config.max_position_embeddings, thetas)
    sliding = read_sliding_layers(fields, config.n_layers, 6)
    return replace(config, ropes=ropes, layer_ropes=tuple(map(int, sliding)))


def _read_common(fields: Fields, architecture: str, period: int) -> ModelConfig:
    fields.refuse_unless("hidden_activation", "gelu_pytorch_tanh")
    causal = not fields.boolean("use_bidirectional_attention", False)
    sizes = read_sizes(fields, llama.NAMES)
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, 0)
    if window and not causal:
        window = window // 2 + 1  # on each side, the query itself included
    sliding = read_sliding_layers(fields, sizes.n_layers, period)
    config = llama_config(
        sizes,
        architecture=architecture,
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCABULARY),
        norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        rope=None,
        sliding_windows=tuple(window if slides else 0 for slides in sliding),
    )
    return replace(
        config,
        activation="gelu_tanh",
        causal=causal,
        post_norm=True,
        embedding_scale=sizes.hidden_size**0.5,
        attention_scale=fields.number("query_pre_attn_scalar", 1e-6, 1e9) ** -0.5,
        logit_softcap=fields.number("final_logit_softcapping", 1e-3, 1e6, 0.0),
    )
