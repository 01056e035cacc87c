"""GPT-2: LayerNorm, learned positions, a fused q-k-v projection, tanh GELU.

The checkpoint's Conv1D weights are (inputs, outputs): the engine gets transposed views of them, and
three slices of the fused q-k-v weight.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...checkpoints.blueprint import EMBEDDING, HEAD, Blueprint
from ...checkpoints.fields import Fields
from ...checkpoints.limits import MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH
from ...checkpoints.model_config import Activation, ModelConfig
from ...checkpoints.tensors import TensorRule
from ...parts.family import Family

_PREFIX = "transformer."
_ACTIVATIONS: dict[str, Activation] = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
}


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a gpt2 config.json. Raises ModelFormatError."""
    config = _read_config(fields)
    tied = fields.boolean("tie_word_embeddings", True)
    return Blueprint(config, tuple(_rules(config)), tied, _PREFIX)


def _read_config(fields: Fields) -> ModelConfig:
    hidden_size = fields.integer("n_embd", 1, MAX_WIDTH)
    n_layers = fields.integer("n_layer", 1, MAX_LAYERS)
    n_heads = fields.integer("n_head", 1, MAX_HEADS)
    if hidden_size % n_heads:
        raise fields.error("n_head", f"a divisor of n_embd, {hidden_size}")
    head_dim = hidden_size // n_heads
    activation = fields.text("activation_function", "gelu_new")
    if activation not in _ACTIVATIONS:
        raise fields.error("activation_function", "one of " + ", ".join(map(repr, _ACTIVATIONS)))
    fields.refuse_unless("scale_attn_by_inverse_layer_idx", False)
    fields.refuse_unless("add_cross_attention", False)
    scaled = fields.boolean("scale_attn_weights", True)
    return ModelConfig(
        architecture="gpt2",
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCABULARY),
        hidden_size=hidden_size,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=head_dim,
        intermediate_size=fields.integer("n_inner", 1, MAX_WIDTH, 4 * hidden_size),
        max_position_embeddings=fields.integer("n_positions", 1, MAX_POSITIONS),
        norm="layer",
        norm_eps=fields.number("layer_norm_epsilon", 0.0, 1.0, 1e-5),
        activation=_ACTIVATIONS[activation],
        gated_mlp=False,
        position="learned",
        ropes=(),
        layer_ropes=(-1,) * n_layers,
        attention_scale=head_dim**-0.5 if scaled else 1.0,
        sliding_windows=(0,) * n_layers,
    )


def _rules(config: ModelConfig) -> Iterator[TensorRule]:
    hidden, vocabulary = config.hidden_size, config.vocab_size
    yield TensorRule(name=EMBEDDING, source=f"{_PREFIX}wte.weight", shape=(vocabulary, hidden))
    yield TensorRule(
        name="position_embedding",
        source=f"{_PREFIX}wpe.weight",
        shape=(config.max_position_embeddings, hidden),
    )
    yield TensorRule(name=HEAD, source="lm_head.weight", shape=(vocabulary, hidden))
    yield from _norm_rules("final_norm", f"{_PREFIX}ln_f", hidden)
    for layer in range(config.n_layers):
        yield from _layer_rules(config, layer)


def _layer_rules(config: ModelConfig, layer: int) -> Iterator[TensorRule]:
    hidden, inner = config.hidden_size, config.intermediate_size
    here, there = f"layers.{layer}.", f"{_PREFIX}h.{layer}."
    yield from _norm_rules(f"{here}attn_norm", f"{there}ln_1", hidden)
    yield from _norm_rules(f"{here}mlp_norm", f"{there}ln_2", hidden)
    for part, name in enumerate("qkv"):
        rows = (part * hidden, (part + 1) * hidden)
        yield from _conv1d_rules(f"{here}{name}", f"{there}attn.c_attn", hidden, 3 * hidden, rows)
    yield from _conv1d_rules(f"{here}o", f"{there}attn.c_proj", hidden, hidden)
    yield from _conv1d_rules(f"{here}up", f"{there}mlp.c_fc", hidden, inner)
    yield from _conv1d_rules(f"{here}down", f"{there}mlp.c_proj", inner, hidden)


def _norm_rules(name: str, source: str, size: int) -> Iterator[TensorRule]:
    for part in ("weight", "bias"):
        yield TensorRule(name=f"{name}.{part}", source=f"{source}.{part}", shape=(size,))


def _conv1d_rules(
    name: str, source: str, n_in: int, n_out: int, rows: tuple[int, int] | None = None
) -> Iterator[TensorRule]:
    yield TensorRule(
        name=f"{name}.weight",
        source=f"{source}.weight",
        shape=(n_in, n_out),
        transposed=True,
        rows=rows,
    )
    yield TensorRule(name=f"{name}.bias", source=f"{source}.bias", shape=(n_out,), rows=rows)


FAMILY = Family(hf={"gpt2": _read}, classes={"gpt2": "GPT2LMHeadModel"})
