"""Read a config.json of a Llama's sizes as that of another family."""

from __future__ import annotations

from typing import Any

from pybatcher.loading.checkpoints.blueprint import Blueprint
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.tensors import TensorRule
from pybatcher.loading.families import read_blueprint

__all__ = ["SIZES", "read_family", "rule_of"]

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def read_family(model_type: str, **changes: Any) -> Blueprint:
    """Read SIZES with changes; `...` removes a field."""
    fields = {**SIZES, "model_type": model_type, **changes}
    fields = {name: value for name, value in fields.items() if value is not ...}
    return read_blueprint(Fields(fields, "config.json"))


def rule_of(blueprint: Blueprint, name: str) -> TensorRule:
    """Return the rule of a tensor by its canonical name."""
    (found,) = [rule for rule in blueprint.rules if rule.name == name]
    return found
