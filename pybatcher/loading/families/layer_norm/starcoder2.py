"""StarCoder2: LayerNorm, rope, a GELU MLP without a gate, biases and optional sliding windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...checkpoints.blueprint import Blueprint
from ...checkpoints.fields import Fields
from ...checkpoints.limits import MAX_POSITIONS, MAX_VOCABULARY
from ...checkpoints.llama_config import llama_config, read_sizes
from ...checkpoints.model_config import Activation, ModelConfig
from ...checkpoints.rope import read_rope
from ...checkpoints.tensors import TensorRule
from ...parts import llama_like
from ...parts.family import Family
from ...parts.gguf_contents import GgufContents
from ...parts.gguf_llama import WINDOW, biases, gguf_blueprint, read_gguf_config, renamed

_ACTIVATIONS: dict[str, Activation] = {
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu": "gelu",
}
_SOURCES = {".mlp.up_proj.": ".mlp.c_fc.", ".mlp.down_proj.": ".mlp.c_proj."}


def _read(fields: Fields) -> Blueprint:
    fields = fields.with_defaults({"num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh"})
    activation = fields.text("hidden_act")
    if activation not in _ACTIVATIONS:
        raise fields.error("hidden_act", "one of " + ", ".join(map(repr, _ACTIVATIONS)))
    sizes = read_sizes(fields, llama_like.NAMES)
    config = llama_config(
        sizes,
        architecture="starcoder2",
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCABULARY),
        norm_eps=fields.number("norm_epsilon", 0.0, 1.0, 1e-5),
        rope=read_rope(fields, sizes.head_dim, sizes.max_position_embeddings),
        sliding_windows=(fields.integer("sliding_window", 1, MAX_POSITIONS, 0),) * sizes.n_layers,
    )
    config = _with_mlp(config, _ACTIVATIONS[activation])
    bias = fields.boolean("use_bias", True)
    rules = _rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=bias)
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", True))


def _with_mlp(config: ModelConfig, activation: Activation) -> ModelConfig:
    """Return a Llama-like configuration with LayerNorm and an MLP without a gate."""
    return replace(config, norm="layer", gated_mlp=False, activation=activation)


def _rules(
    config: ModelConfig, *, qkv_bias: bool, o_bias: bool, mlp_bias: bool
) -> Iterator[TensorRule]:
    for rule in llama_like.rules(
        config, qkv_bias=qkv_bias, o_bias=o_bias, mlp_bias=mlp_bias, norm_bias=True
    ):
        source = rule.source
        for theirs, own in _SOURCES.items():
            source = source.replace(theirs, own)
        yield replace(rule, source=source)


def _read_gguf(contents: GgufContents) -> Blueprint:
    """Read a file, which does not specify the GELU: this is the tanh form, as in llama.cpp."""
    config = _with_mlp(read_gguf_config(contents, reads=(WINDOW,), norm="layer"), "gelu_tanh")
    window = contents.keys.integer(WINDOW, 0, MAX_POSITIONS, 0)
    config = replace(config, sliding_windows=(window,) * config.n_layers)
    return gguf_blueprint(contents, config, renamed(_rules(config, **biases(contents))))


FAMILY = Family(
    hf={"starcoder2": _read},
    classes={"starcoder2": "Starcoder2ForCausalLM"},
    gguf={"starcoder2": _read_gguf},
)
