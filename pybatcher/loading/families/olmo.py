"""OLMo 2 and 3: a norm after each block, before the residual addition, and none before the block.

q and k are normalised over all heads together. In OLMo 3 most layers have sliding windows; the
others may have scaled rotary frequencies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.layer_types import read_ropes, read_sliding_layers
from ..checkpoints.limits import MAX_POSITIONS, MAX_VOCABULARY
from ..checkpoints.llama_config import llama_config, read_sizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.rope import read_rope
from ..checkpoints.tensors import TensorRule
from ..parts import llama_like
from ..parts.family import Family
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_llama import (
    WINDOW,
    biases,
    gguf_blueprint,
    read_gguf_config,
    renamed,
    with_windows,
)

_NORMS = {
    "attn_post_norm": "post_attention_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
_THETA = 5e5  # the default of an olmo3


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of an olmo2 or olmo3 config.json. Raises ModelFormatError."""
    fields.refuse_unless("hidden_act", "silu", "swish")
    sizes = read_sizes(fields, llama_like.NAMES)
    config = llama_config(
        sizes,
        architecture=fields.text("model_type"),
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCABULARY),
        norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, 1e-5),
        rope=None,
        sliding_windows=(0,) * sizes.n_layers,
    )
    config = _post_normed(_read_layers(fields, config))
    bias = fields.boolean("attention_bias", False)
    found = _rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=False)
    return Blueprint(config, tuple(found), fields.boolean("tie_word_embeddings", False))


def _post_normed(config: ModelConfig) -> ModelConfig:
    """Return a Llama-like configuration with the norms of OLMo 2."""
    return replace(config, pre_norm=False, post_norm=True, whole_qk_norm=True)


def _rules(
    config: ModelConfig, *, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> Iterator[TensorRule]:
    """Yield a rule for every tensor of the model, with transformers' names as sources."""
    return llama_like.rules(
        config, qkv_bias=qkv_bias, o_bias=o_bias, mlp_bias=mlp_bias, norms=_NORMS, qk_norm=True
    )


def _read_layers(fields: Fields, config: ModelConfig) -> ModelConfig:
    head_dim, max_positions = config.head_dim, config.max_position_embeddings
    if config.architecture == "olmo2":
        return replace(config, ropes=(read_rope(fields, head_dim, max_positions),))
    # Older files have one rope_theta for all layers.
    theta = fields.number("rope_theta", 1e-3, 1e12, _THETA)
    ropes = read_ropes(fields, head_dim, max_positions, (("rope_theta", theta),) * 2)
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, 4096)
    sliding = read_sliding_layers(fields, config.n_layers, 4)
    return replace(
        config,
        ropes=ropes,
        layer_ropes=tuple(map(int, sliding)),
        sliding_windows=tuple(window if slides else 0 for slides in sliding),
    )


def _read_gguf(contents: GgufContents) -> Blueprint:
    """Read an olmo2 file; with windows it is an OLMo 3, whose windowed layers have plain rope."""
    keys = contents.keys
    config = read_gguf_config(contents, reads=(WINDOW,))
    theta = keys.number("rope.freq_base", 1e-3, 1e12, 1e4)
    theta = keys.number("rope.freq_base_swa", 1e-3, 1e12, theta)
    config = _post_normed(with_windows(keys, config, 4, theta))
    return gguf_blueprint(contents, config, renamed(_rules(config, **biases(contents))))


FAMILY = Family(
    hf={"olmo2": _read, "olmo3": _read},
    classes={"olmo2": "Olmo2ForCausalLM", "olmo3": "Olmo3ForCausalLM"},
    gguf={"olmo2": _read_gguf},
)
