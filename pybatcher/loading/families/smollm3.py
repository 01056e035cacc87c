"""SmolLM3: a Llama that does not rotate queries and keys in some layers (NoPE)."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_LAYERS, MAX_POSITIONS
from ..checkpoints.llama_config import read_sizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.rope import read_rope
from ..parts import llama_like
from ..parts.family import Family
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_llama import biases, from_pairs, gguf_blueprint, read_gguf_config, renamed

_DEFAULT_INTERVAL = 4
_DEFAULT_KV_HEADS = 4
_DEFAULT_THETA = 2e6


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a smollm3 config.json. Raises ModelFormatError."""
    fields = fields.with_defaults({"num_key_value_heads": _DEFAULT_KV_HEADS})
    n_layers = llama_like.read_n_layers(fields)
    rotated = _read_rotated(fields, n_layers)
    sizes = read_sizes(fields, llama_like.NAMES)
    rope = read_rope(
        fields, sizes.head_dim, sizes.max_position_embeddings, default_theta=_DEFAULT_THETA
    )
    config = llama_like.read_config(fields, _read_windows(fields, rotated), rope=rope)
    config = _with_rotated(config, rotated)
    attention_bias = fields.boolean("attention_bias", False)
    rules = llama_like.rules(
        config,
        qkv_bias=attention_bias,
        o_bias=attention_bias,
        mlp_bias=fields.boolean("mlp_bias", False),
    )
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", True))


def _read_gguf(contents: GgufContents) -> Blueprint:
    """Read a file, which does not list NoPE layers: every fourth layer is one, as in llama.cpp."""
    config = read_gguf_config(contents)
    config = _with_rotated(config, _all_but_every(_DEFAULT_INTERVAL, config.n_layers))
    rules = renamed(llama_like.rules(config, **biases(contents)))
    return gguf_blueprint(contents, config, from_pairs(rules, config.head_dim))


def _with_rotated(config: ModelConfig, rotated: tuple[bool, ...]) -> ModelConfig:
    return replace(config, layer_ropes=tuple(0 if turns else -1 for turns in rotated))


def _all_but_every(interval: int, n_layers: int) -> tuple[bool, ...]:
    return tuple((layer + 1) % interval != 0 for layer in range(n_layers))


def _read_rotated(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    """Return, for each layer, True if it has rope, for which `no_rope_layers` has a 1."""
    listed = fields.get("no_rope_layers")
    if listed is None:
        interval = fields.integer("no_rope_layer_interval", 1, MAX_LAYERS, _DEFAULT_INTERVAL)
        return _all_but_every(interval, n_layers)
    if not isinstance(listed, list) or len(listed) < n_layers:
        raise fields.error("no_rope_layers", f"a list of {n_layers} numbers, each 0 or 1")
    if any(type(value) not in (int, bool) or value not in (0, 1) for value in listed):
        raise fields.error("no_rope_layers", f"a list of {n_layers} numbers, each 0 or 1")
    return tuple(bool(value) for value in listed[:n_layers])


def _read_windows(fields: Fields, rotated: tuple[bool, ...]) -> tuple[int, ...]:
    """Return the window of each layer: by `layer_types`, or if that is absent, of NoPE layers.

    `use_sliding_window` applies only if `layer_types` is absent, as in transformers.
    """
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, 0)
    if fields.get("layer_types") is not None:
        return llama_like.read_layer_windows(fields, window, len(rotated))
    if not fields.boolean("use_sliding_window", False):
        window = 0
    return tuple(0 if turns else window for turns in rotated)


FAMILY = Family(
    hf={"smollm3": _read},
    classes={"smollm3": "SmolLM3ForCausalLM"},
    gguf={"smollm3": _read_gguf},
)
