"""`MoeConfig`: the mixtures of experts that a model has in some of its layers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MAX_EXPERTS", "MAX_EXPERTS_OF_MODEL", "MoeConfig"]

MAX_EXPERTS = 4096
"""Most experts of a layer."""
MAX_EXPERTS_OF_MODEL = 2**16
"""Most experts of all layers, so that a hostile configuration cannot ask for millions of rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Layers whose MLP is a mixture of experts: small gated MLPs, of which a row takes few.

    n_experts: of every layer that has any.
    n_experts_per_row: a row takes the experts with the greatest router logits; of `sigmoid` those
        with the greatest sums of a logit's sigmoid and of the expert's bias, if the layer has any.
    intermediate_size: of an expert.
    normalised: the weights of a row's experts sum to 1; False: the weights of all experts do.
    swiglu_limit: above 0: an expert is `down(g * sigmoid(swiglu_alpha * g) * (u + 1))`, where g is
        `gate(x)` up to the limit and u is `up(x)` between its negative and it. 0: it is
        `down(act(gate(x)) * up(x))`.
    in_layer: for each layer, whether it has experts.
    beside_mlp: layers with experts have their MLP too. What both give is normed, and their sum is
        what the layer's MLP would give.
    shared_expert: layers with experts have their MLP too, an expert that all rows share: what it
        gives counts as much as the sigmoid of a product says.
    sigmoid: an expert counts as the sigmoid of its logit, not as a softmax; `normalised` divides by
        the sum of a row's experts.
    weight_scale: multiplies how much an expert counts.
    """

    n_experts: int
    n_experts_per_row: int
    intermediate_size: int
    normalised: bool
    in_layer: tuple[bool, ...]
    swiglu_limit: float = 0.0
    swiglu_alpha: float = 1.0
    beside_mlp: bool = False
    shared_expert: bool = False
    sigmoid: bool = False
    weight_scale: float = 1.0

    def replaces_mlp(self, layer: int) -> bool:
        """Return whether a layer has experts instead of its MLP."""
        return self.in_layer[layer] and not self.beside_mlp
