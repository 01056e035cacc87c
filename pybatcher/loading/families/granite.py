"""Granite 3 and 4: a Llama with four multipliers.

The multipliers scale the token embedding, the output of each block, the scores and the logits. The
engine does not multiply the outputs of blocks. Instead, the whole residual stream is divided by
that multiplier: the embedding is divided by it, and norms, which divide by the root mean square,
need only another epsilon.

Dense Granite 4.0 is published as a granitemoehybrid without experts and without Mamba layers, in
which gate and up are one tensor. Other models of that type are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.llama_config import SizeNames
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.tensors import TensorRule
from ..parts import llama_like
from ..parts.family import Family
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_llama import SCALE, biases, from_pairs, gguf_blueprint, read_gguf_config, renamed

_HYBRID_NAMES = llama_like.NAMES._replace(intermediate_size="shared_intermediate_size")
_ATTENTION = ("attention", "full_attention")


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a granite config.json. Raises ModelFormatError."""
    config = _read_config(fields, llama_like.NAMES)
    bias = fields.boolean("attention_bias", False)
    mlp_bias = fields.boolean("mlp_bias", False)
    rules = llama_like.rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)
    return Blueprint(config, tuple(rules), fields.boolean("tie_word_embeddings", False))


def _read_hybrid(fields: Fields) -> Blueprint:
    """Return the blueprint of a granitemoehybrid config.json of a dense model.

    Raises ModelFormatError, also for experts, Mamba layers and models without positions.
    """
    for name, supported in (("num_local_experts", 0), ("position_embedding_type", "rope")):
        if fields.get(name) != supported:
            raise fields.error(name, f"{supported!r}; nothing else is supported")
    n_layers, kinds = llama_like.read_n_layers(fields), fields.get("layer_types")
    if not isinstance(kinds, list) or any(kind not in _ATTENTION for kind in kinds):
        raise fields.error("layer_types", "a list of 'attention': Mamba layers are not supported")
    if len(kinds) != n_layers:
        raise fields.error("layer_types", f"a list of {n_layers} layer types")
    config = _read_config(fields, _HYBRID_NAMES)
    bias = fields.boolean("attention_bias", False)
    rules = llama_like.rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=False)
    tied = fields.boolean("tie_word_embeddings", False)
    return Blueprint(config, tuple(_of_shared_mlp(config, rules)), tied)


def _read_config(fields: Fields, names: SizeNames) -> ModelConfig:
    windows = (0,) * llama_like.read_n_layers(fields)
    return _with_multipliers(
        llama_like.read_config(fields, windows, names=names),
        embedding=fields.number("embedding_multiplier", 1e-6, 1e6, 1.0),
        residual=fields.number("residual_multiplier", 1e-6, 1e6, 1.0),
        attention=fields.number("attention_multiplier", 1e-6, 1e6, 1.0),
        logits=fields.number("logits_scaling", 1e-6, 1e6, 1.0),
    )


def _of_shared_mlp(config: ModelConfig, rules: Iterator[TensorRule]) -> Iterator[TensorRule]:
    """Yield the rules with a hybrid's names of the MLP; its gate and up are one tensor."""
    inner, hidden = config.intermediate_size, config.hidden_size
    rows = {"gate": (0, inner), "up": (inner, 2 * inner)}
    for rule in rules:
        *layer, part, _ = ("", "", *rule.name.split("."))
        mlp = f"model.layers.{layer[-1]}.shared_mlp."
        if part in rows:
            source = f"{mlp}input_linear.weight"
            yield replace(rule, source=source, shape=(2 * inner, hidden), rows=rows[part])
        elif part == "down":
            yield replace(rule, source=f"{mlp}output_linear.weight")
        else:
            yield rule


def _with_multipliers(
    config: ModelConfig, *, embedding: float, residual: float, attention: float, logits: float
) -> ModelConfig:
    """Return the configuration with Granite's multipliers. logits: a divisor of the logits."""
    return replace(
        config,
        norm_eps=config.norm_eps / residual**2,
        embedding_scale=embedding / residual,
        attention_scale=attention,
        logit_scale=1.0 / logits,
    )


def _read_gguf(contents: GgufContents) -> Blueprint:
    keys = contents.keys
    config = read_gguf_config(contents, reads=(SCALE,))

    def factor(name: str) -> float | None:
        """Return a multiplier; None if the key is absent or 0."""
        value = keys.number(name, 0.0, 1e6, 0.0)
        return keys.number(name, 1e-6, 1e6) if value else None

    if not keys.fields.boolean(f"{keys.prefix}rope.scaling.finetuned", True):
        config = replace(config, layer_ropes=(-1,) * config.n_layers)  # a Granite without positions
    logits = keys.number("logit_scale", 1e-6, 1e6)
    config = _with_multipliers(
        config,
        embedding=factor("embedding_scale") or 1.0,
        residual=factor("residual_scale") or 1.0,
        attention=factor(SCALE) or config.attention_scale,
        logits=logits,
    )
    rules = renamed(llama_like.rules(config, **biases(contents)))
    return gguf_blueprint(contents, config, from_pairs(rules, config.head_dim))


FAMILY = Family(
    hf={"granite": _read, "granitemoehybrid": _read_hybrid},
    classes={
        "granite": "GraniteForCausalLM",
        "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    },
    gguf={"granite": _read_gguf},
)
