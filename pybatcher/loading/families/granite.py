"""Granite 3 and 4, dense: a Llama with four multipliers.

Of the token embedding, of what each block adds to the residual stream, of scores, of logits. The
second one is not computed: with a residual stream that is smaller by it, blocks add as they are,
the embedding is divided by it, and norms, which divide by the root mean square, differ in their
epsilon alone.
"""

from __future__ import annotations

from dataclasses import replace

from ..blueprint import Blueprint
from ..fields import Fields
from ..model_config import ModelConfig
from . import llama

__all__ = ["read", "with_multipliers"]


def read(fields: Fields) -> Blueprint:
    """Return the blueprint of a granite config.json. Raises ModelFormatError."""
    config = llama.read_config(fields, (0,) * llama.read_n_layers(fields))
    config = with_multipliers(
        config,
        embedding=fields.number("embedding_multiplier", 1e-6, 1e6, 1.0),
        residual=fields.number("residual_multiplier", 1e-6, 1e6, 1.0),
        attention=fields.number("attention_multiplier", 1e-6, 1e6, 1.0),
        logits=fields.number("logits_scaling", 1e-6, 1e6, 1.0),
    )
    bias = fields.boolean("attention_bias", False)
    mlp_bias = fields.boolean("mlp_bias", False)
    rules = llama.rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)
    return Blueprint(config, tuple(rules), fields.boolean("tie_word_embeddings", False))


def with_multipliers(
    config: ModelConfig, *, embedding: float, residual: float, attention: float, logits: float
) -> ModelConfig:
    """Return the configuration with Granite's four multipliers; logits are divided by theirs."""
    return replace(
        config,
        norm_eps=config.norm_eps / residual**2,
        embedding_scale=embedding / residual,
        attention_scale=attention,
        logit_scale=1.0 / logits,
    )
