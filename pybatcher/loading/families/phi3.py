"""Phi-3, Phi-3.5 and Phi-4-mini: a Llama with fused weights.

q, k and v are one tensor, gate and up another. Phi-4-mini has LongRoPE and partial rope: the rows
of q and k are ordered so that rotated pairs come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_POSITIONS
from ..checkpoints.llama_config import read_sizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.rope import Rope, read_rope, read_rotary_dim, rotary_order
from ..checkpoints.tensors import TensorRule
from ..parts import llama_like
from ..parts.family import Family
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_llama import ROTARY_DIM, WINDOW, gguf_blueprint, read_gguf_config, renamed

_OLD_NAMES_OF_LONGROPE = ("su", "yarn")
_DEFAULT_ORIGINAL = 4096
_GGUF_NAMES = {"q": "attn_qkv", "k": "attn_qkv", "v": "attn_qkv", "gate": "ffn_up"}


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a phi3 config.json. Raises ModelFormatError."""
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, 0)
    windows = (window,) * llama_like.read_n_layers(fields)
    config = llama_like.read_config(fields, windows, rope=_read_rope(fields), norm_eps=1e-5)
    tied = fields.boolean("tie_word_embeddings", False)
    return Blueprint(config, tuple(_fused_rules(config)), tied)


def _read_rope(fields: Fields) -> Rope:
    sizes = read_sizes(fields, llama_like.NAMES)
    return read_rope(
        fields,
        sizes.head_dim,
        sizes.max_position_embeddings,
        default_original=_DEFAULT_ORIGINAL,
        rotary_dim=read_rotary_dim(fields, sizes.head_dim),
        aliases=dict.fromkeys(_OLD_NAMES_OF_LONGROPE, "longrope"),
    )


def _fused_rules(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield a rule for every tensor of the model, with transformers' names as sources."""
    query, key = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    inner, hidden = config.intermediate_size, config.hidden_size
    qkv, gate_up = ("self_attn.qkv_proj", query + 2 * key), ("mlp.gate_up_proj", 2 * inner)
    parts = {
        "q": (*qkv, (0, query)),
        "k": (*qkv, (query, query + key)),
        "v": (*qkv, (query + key, query + 2 * key)),
        "gate": (*gate_up, (0, inner)),
        "up": (*gate_up, (inner, 2 * inner)),
    }
    rotary_dim = config.ropes[0].rotary_dim
    order = rotary_order(config.head_dim, rotary_dim)
    for rule in llama_like.rules(config, qkv_bias=False, o_bias=False, mlp_bias=False):
        *_, part, _ = ("", *rule.name.split("."))
        if part not in parts:
            yield rule
            continue
        fused, n_rows, rows = parts[part]
        layer = rule.name.split(".")[1]
        yield replace(
            rule,
            source=f"model.layers.{layer}.{fused}.weight",
            shape=(n_rows, hidden),
            rows=rows,
            head_order=order if part in ("q", "k") else (),
        )


def _read_gguf(contents: GgufContents) -> Blueprint:
    config = read_gguf_config(contents, reads=(WINDOW, ROTARY_DIM))
    window = contents.keys.integer(WINDOW, 0, MAX_POSITIONS, 0)
    config = replace(config, sliding_windows=(window,) * config.n_layers)
    return gguf_blueprint(contents, config, renamed(_fused_rules(config), _GGUF_NAMES))


FAMILY = Family(
    hf={"phi3": _read},
    classes={"phi3": "Phi3ForCausalLM"},
    gguf={"phi3": _read_gguf},
)
