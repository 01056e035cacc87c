"""Gemma 2 and 3: norms before and after each block, tanh GELU, windows in most layers.

Norms multiply by 1 + weight; the token embedding is multiplied by the root of its width. Gemma 2
soft-caps scores and logits. Gemma 3 normalises q and k per head, and its sliding-window layers have
a rope of their own. EmbeddingGemma is a Gemma 3 with `use_bidirectional_attention`, an encoder. A
Gemma 3 with images contains a text model, the only part that is read. Absent fields of config.json
have transformers' defaults: Google's files omit many.
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
from ..parts import llama_like
from ..parts.family import Family, ModelClasses
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_llama import (
    WINDOW,
    biases,
    gguf_blueprint,
    read_gguf_config,
    renamed,
    sliding_layers,
    with_windows,
)

_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
"""The number of layers of the 27B, whose attention scale, hidden_size / n_heads, GGUF files omit.
"""

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


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a gemma2 or gemma3_text config.json. Raises ModelFormatError."""
    is_2 = fields.text("model_type") == "gemma2"
    fields = fields.with_defaults(_DEFAULTS_OF_2 if is_2 else _DEFAULTS)
    config = _read_2(fields) if is_2 else _read_3(fields)
    bias = fields.boolean("attention_bias", False)
    rules = llama_like.rules(
        config,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=False,
        norms=llama_like.SANDWICH_NORMS,
        qk_norm=not is_2,
        norm_plus=1.0,
    )
    tied = fields.boolean("tie_word_embeddings", True)
    return Blueprint(
        config, tuple(rules), tied, generates=config.causal, rounds_embedding_scale=True
    )


def _read_multimodal(fields: Fields) -> Blueprint:
    """Return the blueprint of the text part of a gemma3 config.json. Raises ModelFormatError."""
    text = fields.child("text_config").with_defaults({"model_type": "gemma3_text"})
    text.refuse_unless("model_type", "gemma3_text")
    return replace(_read(text), text_prefixes=TEXT_PREFIXES)


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
    sizes = read_sizes(fields, llama_like.NAMES)
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, 0)
    if window and not causal:
        window = window // 2 + 1  # on each side, including the query's own position
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


def _read_gguf_2(contents: GgufContents) -> Blueprint:
    keys = contents.keys
    config = _of_gguf(read_gguf_config(contents, reads=(WINDOW,)))
    window = keys.integer(WINDOW, 0, MAX_POSITIONS, 4096)
    sliding = sliding_layers(keys, config.n_layers, 2)
    config = replace(
        config,
        sliding_windows=tuple(window if slides else 0 for slides in sliding),
        attention_softcap=keys.number("attn_logit_softcapping", 0.0, 1e6, 50.0),
        logit_softcap=keys.number("final_logit_softcapping", 0.0, 1e6, 30.0),
    )
    return gguf_blueprint(contents, config, _gguf_rules(contents, config))


def _read_gguf_3(contents: GgufContents) -> Blueprint:
    config = _gguf_config_3(contents)
    return gguf_blueprint(contents, config, _gguf_rules(contents, config))


def _read_gguf_embedding(contents: GgufContents) -> Blueprint:
    """Read an EmbeddingGemma, an encoder with half a window on each side."""
    config = _gguf_config_3(contents, causal=False)
    windows = tuple(window // 2 + 1 if window else 0 for window in config.sliding_windows)
    config = replace(config, causal=False, sliding_windows=windows)
    return gguf_blueprint(contents, config, _gguf_rules(contents, config))


def _gguf_config_3(contents: GgufContents, *, causal: bool = True) -> ModelConfig:
    keys = contents.keys
    config = read_gguf_config(contents, architecture="gemma3", reads=(WINDOW,), causal=causal)
    config = _of_gguf(config)
    softcap = keys.number("final_logit_softcapping", 0.0, 1e6, 0.0)
    theta = keys.number("rope.freq_base_swa", 1e-3, 1e12, 1e4)
    return with_windows(keys, replace(config, logit_softcap=softcap), 6, theta)


def _of_gguf(config: ModelConfig) -> ModelConfig:
    """Return a Llama-like configuration with the parts that Gemma 2 and 3 share."""
    per_head = config.head_dim
    if config.n_layers == _LAYERS_OF_27B[config.architecture]:
        per_head = config.hidden_size // config.n_heads
    return replace(
        config,
        activation="gelu_tanh",
        post_norm=True,
        embedding_scale=config.hidden_size**0.5,
        attention_scale=per_head**-0.5,
    )


def _gguf_rules(contents: GgufContents, config: ModelConfig) -> Iterator[TensorRule]:
    """Yield the rules of a GGUF file, whose weights of norms include the added 1."""
    return renamed(
        llama_like.rules(
            config,
            **biases(contents),
            norms=llama_like.SANDWICH_NORMS,
            qk_norm=config.architecture == "gemma3",
        )
    )


FAMILY = Family(
    hf={"gemma2": _read, "gemma3_text": _read, "gemma3": _read_multimodal},
    classes={
        "gemma2": "Gemma2ForCausalLM",
        "gemma3_text": ModelClasses(model="Gemma3ForCausalLM", base="Gemma3TextModel"),
        "gemma3": "Gemma3ForConditionalGeneration",
    },
    gguf={
        "gemma2": _read_gguf_2,
        "gemma3": _read_gguf_3,
        "gemma-embedding": _read_gguf_embedding,
    },
)
