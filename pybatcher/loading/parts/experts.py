"""Mixtures of experts in Hugging Face's files: the rules of routers and experts.

Published checkpoints have three matrices for each expert. Live modules of transformers 5 stack the
matrices of all experts of a layer in two tensors: gate above up, and down. Both forms are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_EXPERTS, MAX_LAYERS
from ..checkpoints.model_config import LayerShape, ModelConfig
from ..checkpoints.moe import MAX_EXPERTS_OF_MODEL, MoeConfig
from ..checkpoints.tensors import TensorRule

__all__ = [
    "GATE_UP_DOWN",
    "W123",
    "StackedPart",
    "expert_bias_rule",
    "expert_rules",
    "is_sparse",
    "matrix_rules",
    "read_n_experts",
    "read_sparse_layers",
    "router_rule",
    "shared_expert_rules",
    "stacked_parts",
    "with_shared_expert",
]

GATE_UP_DOWN = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
W123 = {"gate": "w1", "up": "w3", "down": "w2"}
"""The names of an expert's matrices in Mixtral's files, by canonical name; most families use
GATE_UP_DOWN."""


def read_n_experts(fields: Fields, name: str, n_layers: int) -> int:
    """Return the number of experts of a layer. Raises ModelFormatError."""
    n_experts: int = fields.integer(name, 1, MAX_EXPERTS)
    if n_experts * n_layers > MAX_EXPERTS_OF_MODEL:
        raise fields.error(name, f"at most {MAX_EXPERTS_OF_MODEL} experts in all layers")
    return n_experts


def read_sparse_layers(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    """Return, for each layer, True if it has experts, from the fields of Qwen's files."""
    step = fields.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = fields.get("mlp_only_layers")
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or any(type(layer) is not int for layer in dense):
        raise fields.error("mlp_only_layers", "a list of the numbers of layers")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(n_layers))


def with_shared_expert(config: ModelConfig, moe: MoeConfig, width: int) -> ModelConfig:
    """Return the configuration with experts in some layers, whose shared expert has a width."""
    shapes = tuple(
        LayerShape(
            n_kv_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=width if sparse else config.intermediate_size,
        )
        for sparse in moe.in_layer
    )
    return replace(config, moe=moe, layer_shapes=shapes)


def is_sparse(config: ModelConfig, rule: TensorRule) -> bool:
    """Return True if a rule is of a layer with experts."""
    _, number, *_ = (*rule.name.split("."), "")
    in_layer = () if config.moe is None else config.moe.in_layer
    return rule.name.startswith("layers.") and any(in_layer) and in_layer[int(number)]


def router_rule(moe: MoeConfig, hidden: int, layer: int, source: str) -> TensorRule:
    """Return the rule of a layer's router. source: the name of its weight."""
    return TensorRule(
        name=f"layers.{layer}.router.weight", source=source, shape=(moe.n_experts, hidden)
    )


def expert_bias_rule(moe: MoeConfig, layer: int, source: str) -> TensorRule:
    """Return the rule of the biases that the selection of a layer's experts adds."""
    return TensorRule(name=f"layers.{layer}.expert_bias", source=source, shape=(moe.n_experts,))


def expert_rules(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield the rules of routers and experts named `mlp.gate` and `mlp.experts` in each layer."""
    moe = config.moe
    if moe is None:
        return
    for layer in range(config.n_layers):
        if not moe.in_layer[layer]:
            continue
        there = f"model.layers.{layer}.mlp."
        yield router_rule(moe, config.hidden_size, layer, f"{there}gate.weight")
        experts = f"{there}experts."
        parts = stacked_parts(moe, config.hidden_size, experts)
        yield from matrix_rules(parts, layer, experts, GATE_UP_DOWN)


class StackedPart(NamedTuple):
    """One matrix of every expert, inside a tensor of all experts of a layer."""

    name: str
    source: str
    shape: tuple[int, int, int]  # (experts, outputs, inputs)
    rows: tuple[int, int]

    def rule(self, layer: int, expert: int) -> TensorRule:
        """Return the rule of one expert's matrix."""
        return TensorRule(
            name=f"layers.{layer}.experts.{expert}.{self.name}.weight",
            source=self.source,
            shape=self.shape,
            index=expert,
            rows=self.rows,
        )


def stacked_parts(moe: MoeConfig, hidden: int, prefix: str) -> tuple[StackedPart, ...]:
    """Return the experts' matrices in a layer's two stacked tensors, which begin with `prefix`."""
    n, inner = moe.n_experts, moe.intermediate_size
    gate_up, down = f"{prefix}gate_up_proj", f"{prefix}down_proj"
    return (
        StackedPart("gate", gate_up, (n, 2 * inner, hidden), (0, inner)),
        StackedPart("up", gate_up, (n, 2 * inner, hidden), (inner, 2 * inner)),
        StackedPart("down", down, (n, hidden, inner), (0, hidden)),
    )


def matrix_rules(
    stacked: tuple[StackedPart, ...], layer: int, prefix: str, names: Mapping[str, str]
) -> Iterator[TensorRule]:
    """Yield the rules of a layer's experts, whose matrices may be separate or stacked.

    prefix: the part of a matrix's name before the expert's number. names: the names of the
    matrices, by canonical name.
    """
    for part in stacked:
        n_experts, _, n_in = part.shape
        for expert in range(n_experts):
            rule = part.rule(layer, expert)
            yield TensorRule(
                name=rule.name,
                source=f"{prefix}{expert}.{names[part.name]}.weight",
                shape=(part.rows[1] - part.rows[0], n_in),
                otherwise=rule,
            )


def shared_expert_rules(config: ModelConfig, layer: int) -> Iterator[TensorRule]:
    """Yield the rules of a layer's shared expert and its gate, with the names of Qwen's files."""
    hidden, inner = config.hidden_size, config.shape(layer).intermediate_size
    here, there = f"layers.{layer}.", f"model.layers.{layer}.mlp."
    for part, shape in (
        ("gate", (inner, hidden)),
        ("up", (inner, hidden)),
        ("down", (hidden, inner)),
    ):
        source = f"{there}shared_expert.{part}_proj.weight"
        yield TensorRule(name=f"{here}{part}.weight", source=source, shape=shape)
    gate = f"{there}shared_expert_gate.weight"
    yield TensorRule(name=f"{here}shared_gate", source=gate, shape=(1, hidden), index=0)
