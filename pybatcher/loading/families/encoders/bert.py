"""BERT, RoBERTa and XLM-RoBERTa: encoders with LayerNorm after each block, learned positions, GELU.

The models are post-norm: the sum of a block's output and the residual is normalised. The norm after
a block is therefore loaded as the norm before the next one, whose output continues the residual
stream; the norm of the embedding becomes that of the first block, and the norm after the last block
becomes the final norm. All tokens have type 0, whose embedding is added to every position's.
RoBERTa numbers positions from the padding token's id + 1 on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...checkpoints.blueprint import EMBEDDING, Blueprint
from ...checkpoints.fields import Fields
from ...checkpoints.limits import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITIONS,
    MAX_VOCABULARY,
    MAX_WIDTH,
)
from ...checkpoints.model_config import Activation, ModelConfig
from ...checkpoints.tensors import TensorRule
from ...parts.family import Family, ModelClasses
from ...parts.gguf_contents import GgufContents
from ...parts.gguf_llama import gguf_blueprint, read_gguf_sizes
from ...parts.gguf_names import renamed_by

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
_OWN_DEFAULTS: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {"vocab_size": 50265, "pad_token_id": 1},
    "xlm-roberta": {"pad_token_id": 1},
}
_MAX_TYPES = 4096
_GGUF_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
"""GGUF's names of a model's and a layer's tensors, by transformers' names."""
_OLD_NAMES = {"weight": "gamma", "bias": "beta"}  # LayerNorm's names in TensorFlow's checkpoints


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a bert, roberta or xlm-roberta config.json.

    Raises ModelFormatError.
    """
    architecture = fields.text("model_type")
    is_bert = architecture == "bert"
    fields = fields.with_defaults({**_DEFAULTS, **_OWN_DEFAULTS[architecture]})
    for name in ("is_decoder", "add_cross_attention"):
        fields.refuse_unless(name, False)
    fields.refuse_unless("position_embedding_type", "absolute")
    first = 0 if is_bert else fields.integer("pad_token_id", 0, MAX_VOCABULARY) + 1
    n_positions = fields.integer("max_position_embeddings", first + 1, MAX_POSITIONS)
    config = _read_config(fields, n_positions - first)
    prefix = "bert." if is_bert else "roberta."
    n_types = fields.integer("type_vocab_size", 1, _MAX_TYPES)
    found = _rules(config, prefix, first, n_types)
    return Blueprint(
        config,
        tuple(found),
        tied=False,
        prefix=prefix,
        generates=False,
        padding_token=None if is_bert else first - 1,
    )


def _read_config(fields: Fields, n_positions: int) -> ModelConfig:
    hidden_size = fields.integer("hidden_size", 1, MAX_WIDTH)
    n_layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    n_heads = fields.integer("num_attention_heads", 1, MAX_HEADS)
    if hidden_size % n_heads or hidden_size // n_heads > MAX_HEAD_DIM:
        wanted = f"a divisor of hidden_size, {hidden_size}, of which a head has {MAX_HEAD_DIM}"
        raise fields.error("num_attention_heads", f"{wanted} at most")
    activation = fields.text("hidden_act")
    if activation not in _ACTIVATIONS:
        raise fields.error("hidden_act", "one of " + ", ".join(map(repr, _ACTIVATIONS)))
    return ModelConfig(
        architecture=fields.text("model_type"),
        vocab_size=fields.integer("vocab_size", 1, MAX_VOCABULARY),
        hidden_size=hidden_size,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=hidden_size // n_heads,
        intermediate_size=fields.integer("intermediate_size", 1, MAX_WIDTH),
        max_position_embeddings=n_positions,
        norm="layer",
        norm_eps=fields.number("layer_norm_eps", 0.0, 1.0),
        activation=_ACTIVATIONS[activation],
        gated_mlp=False,
        position="learned",
        ropes=(),
        layer_ropes=(-1,) * n_layers,
        attention_scale=(hidden_size // n_heads) ** -0.5,
        sliding_windows=(0,) * n_layers,
        causal=False,
        residual_norms="all",
    )


def _rules(
    config: ModelConfig, prefix: str, first_position: int, n_types: int
) -> Iterator[TensorRule]:
    """Yield a rule for every tensor, with transformers' names as sources.

    prefix: the prefix of the names. first_position: index of the first row of the position
        embedding that is used.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    embeddings = f"{prefix}embeddings."
    yield TensorRule(
        name=EMBEDDING,
        source=f"{embeddings}word_embeddings.weight",
        shape=(config.vocab_size, hidden),
    )
    n_positions = first_position + config.max_position_embeddings
    yield TensorRule(
        name="position_embedding",
        source=f"{embeddings}position_embeddings.weight",
        shape=(n_positions, hidden),
        rows=(first_position, n_positions),
        plus_row=TensorRule(
            name="token_type",
            source=f"{embeddings}token_type_embeddings.weight",
            shape=(n_types, hidden),
        ),
    )
    yield from _norm_rules("layers.0.attn_norm", f"{embeddings}LayerNorm", hidden)
    for layer in range(config.n_layers):
        here, there = f"layers.{layer}.", f"{prefix}encoder.layer.{layer}."
        for name, source, n_out, n_in in (
            ("q", "attention.self.query", hidden, hidden),
            ("k", "attention.self.key", hidden, hidden),
            ("v", "attention.self.value", hidden, hidden),
            ("o", "attention.output.dense", hidden, hidden),
            ("up", "intermediate.dense", inner, hidden),
            ("down", "output.dense", hidden, inner),
        ):
            yield TensorRule(
                name=f"{here}{name}.weight", source=f"{there}{source}.weight", shape=(n_out, n_in)
            )
            yield TensorRule(
                name=f"{here}{name}.bias", source=f"{there}{source}.bias", shape=(n_out,)
            )
        yield from _norm_rules(f"{here}mlp_norm", f"{there}attention.output.LayerNorm", hidden)
        is_last = layer + 1 == config.n_layers
        after = "final_norm" if is_last else f"layers.{layer + 1}.attn_norm"
        yield from _norm_rules(after, f"{there}output.LayerNorm", hidden)


def _norm_rules(name: str, source: str, size: int) -> Iterator[TensorRule]:
    for part, old in _OLD_NAMES.items():
        own, shape = f"{name}.{part}", (size,)
        yield TensorRule(
            name=own,
            source=f"{source}.{part}",
            shape=shape,
            otherwise=TensorRule(name=own, source=f"{source}.{old}", shape=shape),
        )


def _read_gguf(contents: GgufContents) -> Blueprint:
    """Read a `bert` file: a BERT, RoBERTa or XLM-RoBERTa.

    The file does not specify the GELU of the model's training. This is the exact GELU here, and the
    tanh approximation in llama.cpp.
    """
    keys, sizes = contents.keys, read_gguf_sizes(contents)
    keys.refuse_unless("attention.causal", False)
    config = ModelConfig(
        **sizes._asdict(),
        architecture="bert",
        vocab_size=contents.vocab_size,
        norm="layer",
        norm_eps=keys.number("attention.layer_norm_epsilon", 0.0, 1.0),
        activation="gelu",
        gated_mlp=False,
        position="learned",
        ropes=(),
        layer_ropes=(-1,) * sizes.n_layers,
        attention_scale=sizes.head_dim**-0.5,
        sliding_windows=(0,) * sizes.n_layers,
        causal=False,
        residual_norms="all",
    )
    types = contents.tensors.get("token_types.weight")
    n_types = 1 if types is None else types.shape[0]
    rules = renamed_by(_rules(config, "", 0, n_types), _GGUF_NAMES)
    blueprint = gguf_blueprint(contents, config, rules)
    if contents.metadata.get("tokenizer.ggml.model") == "bert":
        return blueprint
    name = "tokenizer.ggml.padding_token_id"
    padding = contents.metadata.integer(name, 0, MAX_VOCABULARY, None)
    return replace(blueprint, padding_token=padding)  # of a RoBERTa


FAMILY = Family(
    hf={"bert": _read, "roberta": _read, "xlm-roberta": _read},
    classes={
        "bert": ModelClasses(encoders=("BertModel", "BertForMaskedLM", "BertForPreTraining")),
        "roberta": ModelClasses(encoders=("RobertaModel", "RobertaForMaskedLM")),
        "xlm-roberta": ModelClasses(encoders=("XLMRobertaModel", "XLMRobertaForMaskedLM")),
    },
    gguf={"bert": _read_gguf},
)
