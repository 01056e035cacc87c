"""Gemma 4 26B-A4B: in every layer experts beside the MLP, with norms and a router of their own.

The router has an RMSNorm whose weight is divided by sqrt(hidden), and multiplies the weights of a
row's experts, which sum to 1, by a scale of each expert.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_WIDTH
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.moe import MoeConfig
from ..checkpoints.tensors import TensorRule
from .moe import read_n_experts, stacked_parts

__all__ = ["expert_rules", "norm_rules", "read_moe", "router_factor"]

_NORMS = {
    "experts_norm": "pre_feedforward_layernorm_2",
    "mlp_out_norm": "post_feedforward_layernorm_1",
    "experts_out_norm": "post_feedforward_layernorm_2",
}


def read_moe(fields: Fields, n_layers: int) -> MoeConfig | None:
    """Return the experts of a gemma4_text config.json; None: it has none."""
    if not fields.boolean("enable_moe_block", False):
        return None
    n_experts = read_n_experts(fields, "num_experts", n_layers)
    return MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer("top_k_experts", 1, n_experts),
        intermediate_size=fields.integer("moe_intermediate_size", 1, MAX_WIDTH),
        normalised=True,
        in_layer=(True,) * n_layers,
        beside_mlp=True,
    )


def router_factor(config: ModelConfig) -> float:
    """Return what the weight of the router's norm is multiplied by."""
    return float(config.hidden_size**-0.5)


def norm_rules(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield the rules of the norms around MLP and experts; the router's is of `expert_rules`."""
    if config.moe is None:
        return
    for layer in range(config.n_layers):
        for name, source in _NORMS.items():
            yield TensorRule(
                name=f"layers.{layer}.{name}.weight",
                source=f"model.layers.{layer}.{source}.weight",
                shape=(config.hidden_size,),
            )


def expert_rules(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield the rules of routers and experts."""
    moe = config.moe
    if moe is None:
        return
    for layer in range(config.n_layers):
        here, there = f"layers.{layer}.", f"model.layers.{layer}."
        yield TensorRule(
            name=f"{here}router_norm.weight",
            source=f"{there}router.scale",
            shape=(config.hidden_size,),
            times=router_factor(config),
        )
        yield TensorRule(
            name=f"{here}router.weight",
            source=f"{there}router.proj.weight",
            shape=(moe.n_experts, config.hidden_size),
        )
        yield TensorRule(
            name=f"{here}expert_scales.weight",
            source=f"{there}router.per_expert_scale",
            shape=(moe.n_experts,),
        )
        for part in stacked_parts(moe, config.hidden_size, f"{there}experts."):
            yield from (part.rule(layer, expert) for expert in range(moe.n_experts))
