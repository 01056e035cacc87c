"""EXAONE 4: a norm after each block and none before it; q and k are normalised per head.

In the 32B, three layers of four have sliding windows, and q and k of the others are not rotated.
"""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.layer_types import read_sliding_layers
from ..checkpoints.limits import MAX_POSITIONS
from ..checkpoints.model_config import ModelConfig
from ..parts import llama_like
from ..parts.family import Family
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_llama import (
    WINDOW,
    biases,
    gguf_blueprint,
    read_gguf_config,
    renamed,
    sliding_layers,
)

_PERIOD = 4
_NORMS = {
    "attn_post_norm": "post_attention_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}


def _read(fields: Fields) -> Blueprint:
    fields = fields.with_defaults({"sliding_window": 4096})
    n_layers = llama_like.read_n_layers(fields)
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, 0)
    sliding = (False,) * n_layers
    if fields.get("layer_types") is not None or window:
        sliding = read_sliding_layers(fields, n_layers, _PERIOD)
    config = llama_like.read_config(fields, (0,) * n_layers, norm_eps=1e-5)
    config = _with_windows(config, window, sliding)
    rules = llama_like.rules(
        config, qkv_bias=False, o_bias=False, mlp_bias=False, norms=_NORMS, qk_norm=True
    )
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


def _with_windows(config: ModelConfig, window: int, sliding: tuple[bool, ...]) -> ModelConfig:
    """Return a Llama-like configuration with EXAONE's norms and windows; window 0 means none."""
    config = replace(config, pre_norm=False, post_norm=True)
    if window == 0:
        return config
    return replace(
        config,
        layer_ropes=tuple(0 if slides else -1 for slides in sliding),
        sliding_windows=tuple(window if slides else 0 for slides in sliding),
    )


def _read_gguf(contents: GgufContents) -> Blueprint:
    keys = contents.keys
    config = read_gguf_config(contents, reads=(WINDOW,))
    window = keys.integer(WINDOW, 0, MAX_POSITIONS, 0)
    sliding = tuple(sliding_layers(keys, config.n_layers, _PERIOD))
    config = _with_windows(config, window, sliding)
    rules = llama_like.rules(config, **biases(contents), norms=_NORMS, qk_norm=True)
    return gguf_blueprint(contents, config, renamed(rules))


FAMILY = Family(
    hf={"exaone4": _read},
    classes={"exaone4": "Exaone4ForCausalLM"},
    gguf={"exaone4": _read_gguf},
)
