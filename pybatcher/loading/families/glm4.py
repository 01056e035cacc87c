"""GLM-4-0414 (9B and 32B): norms before and after each block, and rope in interleaved pairs.

The first half of each head is rotated. q, k and v have biases; gate and up are one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.llama_config import read_sizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.rope import read_rope, read_rotary_dim, rotary_order
from ..checkpoints.tensors import TensorRule
from ..parts import llama_like
from ..parts.family import Family
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_llama import ROTARY_DIM, biases, gguf_blueprint, read_gguf_config, renamed

_DEFAULTS = {"num_key_value_heads": 2, "head_dim": 128, "partial_rotary_factor": 0.5}
_EPSILON = 1.5625e-7
_NORMS = {
    "attn_norm": "input_layernorm",
    "attn_post_norm": "post_self_attn_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "mlp_post_norm": "post_mlp_layernorm",
}
_GGUF_NAMES = {"gate": "ffn_up"}


def _read(fields: Fields) -> Blueprint:
    fields = fields.with_defaults(_DEFAULTS)
    sizes = read_sizes(fields, llama_like.NAMES)
    rotary_dim = read_rotary_dim(fields, sizes.head_dim)
    rope = read_rope(fields, sizes.head_dim, sizes.max_position_embeddings, rotary_dim=rotary_dim)
    windows = (0,) * sizes.n_layers
    config = llama_like.read_config(fields, windows, rope=rope, norm_eps=_EPSILON)
    config = replace(config, post_norm=True)
    bias = fields.boolean("attention_bias", True)
    rules = _rules(config, qkv_bias=bias, o_bias=False, mlp_bias=False)
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


def _rules(
    config: ModelConfig, *, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> Iterator[TensorRule]:
    inner, hidden = config.intermediate_size, config.hidden_size
    rows = {"gate": (0, inner), "up": (inner, 2 * inner)}
    found = llama_like.rules(
        config, qkv_bias=qkv_bias, o_bias=o_bias, mlp_bias=mlp_bias, norms=_NORMS
    )
    rotary_dim = 2 * sum(frequency > 0 for frequency in config.ropes[0].inv_freq)
    order = rotary_order(config.head_dim, rotary_dim, interleaved=True)
    for rule in llama_like.with_head_order(found, order):
        _, number, part, *_ = (*rule.name.split("."), "", "")
        if part not in rows:
            yield rule
            continue
        source = f"model.layers.{number}.mlp.gate_up_proj.weight"
        yield replace(rule, source=source, shape=(2 * inner, hidden), rows=rows[part])


def _read_gguf(contents: GgufContents) -> Blueprint:
    config = replace(read_gguf_config(contents, reads=(ROTARY_DIM,)), post_norm=True)
    rules = renamed(_rules(config, **biases(contents)), _GGUF_NAMES)
    return gguf_blueprint(contents, config, rules)


FAMILY = Family(
    hf={"glm4": _read},
    classes={"glm4": "Glm4ForCausalLM"},
    gguf={"glm4": _read_gguf},
)
