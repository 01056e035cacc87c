"""`MoeConfig`: the layers of a model that have a mixture of experts (MoE)."""

from __future__ import annotations

from dataclasses import dataclass

from .limits import ExpertCount, NonNegative, Positive, Width

__all__ = ["MAX_EXPERTS_OF_MODEL", "MoeConfig"]

MAX_EXPERTS_OF_MODEL = 2**16
"""The maximum for all layers together: a hostile configuration cannot create millions of rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Layers with a mixture of experts: small gated MLPs, a few of which each row selects.

    `csrc/config/config_fields.def` documents the scalar fields.
    in_layer: for each layer, True if it has experts.
    """

    n_experts: ExpertCount
    n_experts_per_row: ExpertCount
    intermediate_size: Width
    normalised: bool
    in_layer: tuple[bool, ...]
    swiglu_limit: NonNegative = 0.0
    swiglu_alpha: Positive = 1.0
    beside_mlp: bool = False
    shared_expert: bool = False
    shared_gate: bool = True
    sigmoid: bool = False
    weight_scale: Positive = 1.0

    def replaces_mlp(self, layer: int) -> bool:
        """Return True if the layer has experts instead of an MLP."""
        return self.in_layer[layer] and not self.beside_mlp
