"""Mixtures of experts: Qwen3-MoE and Mixtral, which are Qwen3 and Mistral but for the MLP.

Published checkpoints have three matrices an expert. Live modules of transformers 5 stack those of
all experts of a layer in two tensors: gate over up, and down. Both are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.moe import MAX_EXPERTS, MAX_EXPERTS_OF_MODEL, MoeConfig
from ..checkpoints.tensors import TensorRule
from . import llama

__all__ = [
    "W123",
    "StackedPart",
    "expert_rules",
    "matrix_rules",
    "read",
    "read_n_experts",
    "stacked_parts",
]

_QWEN3_PARTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
W123 = {"gate": "w1", "up": "w3", "down": "w2"}
"""Names of the matrices of an expert of Mixtral, by canonical name."""
_DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"sliding_window": 4096},
    "mixtral": {"rope_theta": 1e6},
}


def read(fields: Fields) -> Blueprint:
    """Return the blueprint of a qwen3_moe or mixtral config.json. Raises ModelFormatError."""
    architecture = fields.text("model_type")
    is_qwen = architecture == "qwen3_moe"
    fields = fields.with_defaults(_DEFAULTS[architecture])
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, 0)
    if is_qwen and not fields.boolean("use_sliding_window", False):
        window = 0
    windows = (window,) * llama.read_n_layers(fields)
    config = llama.read_config(fields, windows, norm_eps=1e-6 if is_qwen else 1e-5)
    config = replace(config, moe=_read_moe(fields, config, is_qwen))
    bias = is_qwen and fields.boolean("attention_bias", False)
    rules = llama.rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=False)
    tied = fields.boolean("tie_word_embeddings", False)
    return Blueprint(config, (*rules, *expert_rules(config)), tied)


def _read_moe(fields: Fields, config: ModelConfig, is_qwen: bool) -> MoeConfig | None:
    """Return None where all layers are dense."""
    name = "num_experts" if "num_experts" in fields else "num_local_experts"
    n_experts = read_n_experts(fields, name, config.n_layers)
    in_layer = (True,) * config.n_layers
    intermediate_size = config.intermediate_size
    if is_qwen:
        in_layer = _read_sparse_layers(fields, config.n_layers)
        intermediate_size = fields.integer("moe_intermediate_size", 1, MAX_WIDTH)
    moe = MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer("num_experts_per_tok", 1, n_experts),
        intermediate_size=intermediate_size,
        normalised=fields.boolean("norm_topk_prob", False) if is_qwen else True,
        in_layer=in_layer,
    )
    return moe if any(in_layer) else None


def read_n_experts(fields: Fields, name: str, n_layers: int) -> int:
    """Return the number of experts of a layer. Raises ModelFormatError."""
    n_experts: int = fields.integer(name, 1, MAX_EXPERTS)
    if n_experts * n_layers > MAX_EXPERTS_OF_MODEL:
        raise fields.error(name, f"at most {MAX_EXPERTS_OF_MODEL} experts in all layers")
    return n_experts


def _read_sparse_layers(fields: Fields, n_layers: int) -> tuple[bool, ...]:
    step = fields.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = fields.get("mlp_only_layers")
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or any(type(layer) is not int for layer in dense):
        raise fields.error("mlp_only_layers", "a list of the numbers of layers")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(n_layers))


def expert_rules(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield the rules of routers and experts: of three matrices each, or of stacked ones."""
    moe = config.moe
    if moe is None:
        return
    is_qwen = config.architecture != "mixtral"
    parts = _QWEN3_PARTS if is_qwen else W123
    for layer in range(config.n_layers):
        if not moe.in_layer[layer]:
            continue
        stacked = f"model.layers.{layer}.mlp."
        there = stacked if is_qwen else f"model.layers.{layer}.block_sparse_moe."
        router = TensorRule(
            name=f"layers.{layer}.router.weight",
            source=f"{there}gate.weight",
            shape=(moe.n_experts, config.hidden_size),
        )
        yield replace(router, otherwise=replace(router, source=f"{stacked}gate.weight"))
        yield from matrix_rules(
            stacked_parts(moe, config.hidden_size, f"{stacked}experts."),
            layer,
            f"{there}experts.",
            parts,
        )


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
    """Return the matrices of experts that a layer has in two tensors, named after `prefix`."""
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
    """Yield the rules of a layer's experts, each with three matrices, or with stacked ones.

    prefix: what the matrices of an expert are named after, before its number. names: of them.
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
