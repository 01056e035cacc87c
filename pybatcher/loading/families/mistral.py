"""Mistral and Mixtral: a Llama with a sliding window in every layer; experts in Mixtral."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_POSITIONS
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.moe import MoeConfig
from ..checkpoints.tensors import TensorRule
from ..parts import llama_like
from ..parts.experts import W123, matrix_rules, read_n_experts, router_rule, stacked_parts
from ..parts.family import Family, ModelClasses

_WINDOW = 4096


def _read(fields: Fields) -> Blueprint:
    fields = fields.with_defaults({"sliding_window": _WINDOW})
    n_layers = llama_like.read_n_layers(fields)
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, 0)
    windows = (window,) * n_layers
    if fields.get("layer_types") is not None:  # it is a Ministral then, as in transformers
        windows = llama_like.read_layer_windows(fields, window, n_layers)
    config = llama_like.read_config(fields, windows)
    rules = llama_like.rules(config, qkv_bias=False, o_bias=False, mlp_bias=False)
    return Blueprint(config, tuple(rules), tied=fields.boolean("tie_word_embeddings", False))


def _read_mixtral(fields: Fields) -> Blueprint:
    fields = fields.with_defaults({"rope_theta": 1e6})
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, 0)
    windows = (window,) * llama_like.read_n_layers(fields)
    config = llama_like.read_config(fields, windows, norm_eps=1e-5)
    name = "num_experts" if "num_experts" in fields else "num_local_experts"
    n_experts = read_n_experts(fields, name, config.n_layers)
    moe = MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer("num_experts_per_tok", 1, n_experts),
        intermediate_size=config.intermediate_size,
        normalised=True,
        in_layer=(True,) * config.n_layers,
    )
    config = replace(config, moe=moe)
    rules = llama_like.rules(config, qkv_bias=False, o_bias=False, mlp_bias=False)
    tied = fields.boolean("tie_word_embeddings", False)
    return Blueprint(config, (*rules, *_expert_rules(config, moe)), tied)


def _expert_rules(config: ModelConfig, moe: MoeConfig) -> list[TensorRule]:
    """Return the rules of published files, or of modules, whose MLP has another name."""
    rules = []
    for layer in range(config.n_layers):
        published = f"model.layers.{layer}.block_sparse_moe."
        live = f"model.layers.{layer}.mlp."
        router = router_rule(moe, config.hidden_size, layer, f"{published}gate.weight")
        rules.append(replace(router, otherwise=replace(router, source=f"{live}gate.weight")))
        parts = stacked_parts(moe, config.hidden_size, f"{live}experts.")
        rules.extend(matrix_rules(parts, layer, f"{published}experts.", W123))
    return rules


FAMILY = Family(
    hf={"mistral": _read, "mixtral": _read_mixtral},
    classes={
        "mistral": ModelClasses(model="MistralForCausalLM", base="MistralModel"),
        "mixtral": "MixtralForCausalLM",
    },
)
