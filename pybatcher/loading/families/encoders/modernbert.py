"""ModernBERT: an encoder with rotary positions and with sliding-window or full attention.

Each block has a LayerNorm before it, mostly without a bias; the MLP is gated by GELU. The first
layer has no norm before attention: the norm of the embedding replaces it, and its output continues
the residual stream. Absent fields of config.json have transformers' defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...checkpoints.blueprint import EMBEDDING, Blueprint
from ...checkpoints.fields import Fields
from ...checkpoints.layer_types import read_ropes, read_sliding_layers
from ...checkpoints.limits import MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY
from ...checkpoints.llama_config import read_sizes
from ...checkpoints.model_config import Activation, ModelConfig
from ...checkpoints.rope import read_rope
from ...checkpoints.tensors import TensorRule
from ...parts import llama_like
from ...parts.family import Family, ModelClasses
from ...parts.gguf_contents import GgufContents
from ...parts.gguf_llama import WINDOW, gguf_blueprint, read_gguf_sizes, sliding_layers
from ...parts.gguf_names import renamed_by

_PREFIX = "model."
_THETAS = (("global_rope_theta", 1.6e5), ("local_rope_theta", 1e4))
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "hidden_activation": "gelu",
    "max_position_embeddings": 8192,
    "local_attention": 128,
}
_GGUF_NAMES = {
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "final_norm": "output_norm",
    "attn_norm": "attn_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.Wo": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.Wi": "ffn_up",
    "mlp.Wo": "ffn_down",
}
"""GGUF's names of a model's and a layer's tensors, by transformers' names."""
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a modernbert config.json. Raises ModelFormatError."""
    fields = fields.with_defaults(_DEFAULTS)
    for name in ("num_key_value_heads", "head_dim", "rope_scaling"):
        fields.refuse_unless(name)
    config = _read_config(fields)
    found = _rules(
        config,
        attention_bias=fields.boolean("attention_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
    )
    return Blueprint(config, tuple(found), tied=False, prefix=_PREFIX, generates=False)


def _read_config(fields: Fields) -> ModelConfig:
    sizes = read_sizes(fields, llama_like.NAMES)
    activation = fields.text("hidden_activation")
    if activation not in _ACTIVATIONS:
        raise fields.error("hidden_activation", "one of " + ", ".join(map(repr, _ACTIVATIONS)))
    sliding = _read_sliding_layers(fields, sizes.n_layers)
    window = fields.integer("local_attention", 1, MAX_POSITIONS) // 2 + 1
    ropes = read_ropes(fields, sizes.head_dim, sizes.max_position_embeddings, _THETAS)
    return ModelConfig(
        **sizes._asdict(),
        architecture="modernbert",
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCABULARY),
        norm="layer",
        norm_eps=fields.number("norm_eps", 0.0, 1.0, 1e-5),
        activation=_ACTIVATIONS[activation],
        gated_mlp=True,
        position="rope",
        ropes=ropes,
        layer_ropes=tuple(map(int, sliding)),
        attention_scale=sizes.head_dim**-0.5,
        sliding_windows=tuple(window if slides else 0 for slides in sliding),
        causal=False,
        norm_bias=fields.boolean("norm_bias", False),
        residual_norms="first",
    )


def _read_sliding_layers(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    if fields.get("layer_types") is not None:
        return read_sliding_layers(fields, n_layers, 1)
    period = fields.integer("global_attn_every_n_layers", 1, MAX_LAYERS, 3)
    return tuple(layer % period != 0 for layer in range(n_layers))


def _rules(config: ModelConfig, *, attention_bias: bool, mlp_bias: bool) -> Iterator[TensorRule]:
    """Yield a rule for every tensor, with transformers' names as sources."""
    hidden, inner = config.hidden_size, config.intermediate_size
    yield TensorRule(
        name=EMBEDDING,
        source=f"{_PREFIX}embeddings.tok_embeddings.weight",
        shape=(config.vocab_size, hidden),
    )
    yield from _norm_rules(config, "final_norm", f"{_PREFIX}final_norm")
    for layer in range(config.n_layers):
        here, there = f"layers.{layer}.", f"{_PREFIX}layers.{layer}."
        before = f"{there}attn_norm" if layer else f"{_PREFIX}embeddings.norm"
        yield from _norm_rules(config, f"{here}attn_norm", before)
        yield from _norm_rules(config, f"{here}mlp_norm", f"{there}mlp_norm")
        for parts, source, n_out, n_in, bias in (
            (("q", "k", "v"), "attn.Wqkv", hidden, hidden, attention_bias),
            (("o",), "attn.Wo", hidden, hidden, attention_bias),
            (("gate", "up"), "mlp.Wi", inner, hidden, mlp_bias),
            (("down",), "mlp.Wo", hidden, inner, mlp_bias),
        ):
            for i, part in enumerate(parts):
                fused, rows = n_out * len(parts), (i * n_out, (i + 1) * n_out)
                yield TensorRule(
                    name=f"{here}{part}.weight",
                    source=f"{there}{source}.weight",
                    shape=(fused, n_in),
                    rows=rows,
                )
                if bias:
                    yield TensorRule(
                        name=f"{here}{part}.bias",
                        source=f"{there}{source}.bias",
                        shape=(fused,),
                        rows=rows,
                    )


def _norm_rules(config: ModelConfig, name: str, source: str) -> Iterator[TensorRule]:
    for part in ("weight", "bias") if config.norm_bias else ("weight",):
        yield TensorRule(
            name=f"{name}.{part}", source=f"{source}.{part}", shape=(config.hidden_size,)
        )


def _read_gguf(contents: GgufContents) -> Blueprint:
    """Read a `modern-bert` file, which has no biases.

    The file does not specify the GELU of the model's training. This is the exact GELU here, and the
    tanh approximation in llama.cpp.
    """
    keys, sizes = contents.keys, read_gguf_sizes(contents, reads=(WINDOW,))
    sliding = sliding_layers(keys, sizes.n_layers, 3, full_first=True)
    keys.refuse_unless("attention.causal", False)
    window = keys.integer(WINDOW, 0, MAX_POSITIONS, 0)
    sliding = [slides and window > 0 for slides in sliding]
    thetas = (
        keys.number("rope.freq_base", 1e-3, 1e12, 1e4),
        keys.number("rope.freq_base_swa", 1e-3, 1e12, 1e4),
    )
    source, n_positions = keys.fields.source, sizes.max_position_embeddings
    ropes = [
        read_rope(Fields({"rope_theta": theta}, source), sizes.head_dim, n_positions)
        for theta in thetas
    ]
    config = ModelConfig(
        **sizes._asdict(),
        architecture="modernbert",
        vocab_size=contents.vocab_size,
        norm="layer",
        norm_eps=keys.number("attention.layer_norm_epsilon", 0.0, 1.0),
        activation="gelu",
        gated_mlp=True,
        position="rope",
        ropes=tuple(ropes),
        layer_ropes=tuple(map(int, sliding)),
        attention_scale=sizes.head_dim**-0.5,
        sliding_windows=tuple(window // 2 + 1 if slides else 0 for slides in sliding),
        causal=False,
        norm_bias=False,
        residual_norms="first",
    )
    rules = _rules(config, attention_bias=False, mlp_bias=False)
    bare = (replace(rule, source=rule.source.removeprefix(_PREFIX)) for rule in rules)
    return gguf_blueprint(contents, config, renamed_by(bare, _GGUF_NAMES))


FAMILY = Family(
    hf={"modernbert": _read},
    classes={"modernbert": ModelClasses(encoders=("ModernBertModel", "ModernBertForMaskedLM"))},
    gguf={"modern-bert": _read_gguf},
)
