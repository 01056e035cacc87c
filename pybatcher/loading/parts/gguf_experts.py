"""The mixtures of experts of a GGUF file: its keys, and the rules of its tensors.

A Mixtral is a `llama` with experts in llama.cpp. The architecture determines whether the weights
of the chosen experts are normalised.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from ..checkpoints.limits import MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH
from ..checkpoints.llama_config import LlamaSizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.moe import MAX_EXPERTS_OF_MODEL, MoeConfig
from ..checkpoints.tensors import TensorRule
from .experts import expert_bias_rule, router_rule
from .gguf_keys import ArchitectureKeys

__all__ = ["SHARED_EXPERT_NAMES", "GgufExperts", "expert_bias_rules", "expert_rules", "read_moe"]

SHARED_EXPERT_NAMES = {
    "gate": "ffn_gate_shexp",
    "up": "ffn_up_shexp",
    "down": "ffn_down_shexp",
    "shared_gate": "ffn_gate_inp_shexp.weight",
}
"""GGUF's names of the matrices of a shared expert, which is the MLP of a layer with experts."""

# The numbers of llama.cpp's gating functions.
_SOFTMAX = 1
_SIGMOID = 2
_SOFTMAX_OF_CHOSEN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufExperts:
    """The properties of an architecture's experts that no key of a file describes.

    always: True if every file has experts.
    wide_as_mlp: True if an expert is as wide as the model's MLP by default.
    softmax_of_chosen: True if the weights are a softmax over the selected experts, not over all.
    swiglu_limit, swiglu_alpha, beside_mlp, shared_expert, sigmoid: the fields of `MoeConfig`.
    dense_first: True if a key may give a number of first layers without experts.
    normalised: True if the weights of the selected experts are divided by their sum.
    n_shared: the experts whose widths a shared expert has.
    """

    always: bool = False
    wide_as_mlp: bool = False
    softmax_of_chosen: bool = False
    swiglu_limit: float = 0.0
    swiglu_alpha: float = 1.0
    beside_mlp: bool = False
    shared_expert: bool = False
    sigmoid: bool = False
    dense_first: bool = False
    normalised: bool = True
    n_shared: int = 1


def read_moe(
    keys: ArchitectureKeys, experts: GgufExperts | None, sizes: LlamaSizes
) -> MoeConfig | None:
    """Return the experts that the metadata describe; None: the model has none.

    experts: the architecture's experts; None: a file with experts is refused.

    Raises ModelFormatError for a value that is out of range or unsupported.
    """
    if experts is None:
        keys.refuse_unless("expert_count", 0)
        return None
    if experts.always:
        n_experts = keys.integer("expert_count", 1, MAX_EXPERTS)
    else:
        n_experts = keys.integer("expert_count", 0, MAX_EXPERTS, 0)
    if n_experts == 0:
        return None
    if n_experts * sizes.n_layers > MAX_EXPERTS_OF_MODEL:
        raise keys.error("expert_count", f"at most {MAX_EXPERTS_OF_MODEL} experts in all layers")
    gating = _SIGMOID if experts.sigmoid else _SOFTMAX
    gating = _SOFTMAX_OF_CHOSEN if experts.softmax_of_chosen else gating
    keys.refuse_unless("expert_shared_count", experts.n_shared if experts.shared_expert else 0)
    keys.refuse_unless("expert_gating_func", gating)
    keys.refuse_unless("expert_weights_norm", experts.normalised)
    scale = 1.0
    if not experts.sigmoid:
        keys.refuse_unless("expert_weights_scale", 0.0, 1.0)
    elif keys.number("expert_weights_scale", 0.0, 1e6, 0.0):  # 0 means no scale
        scale = keys.number("expert_weights_scale", 1e-6, 1e6)
    n_dense = 0
    if experts.dense_first:
        n_dense = keys.integer("leading_dense_block_count", 0, MAX_LAYERS, 0)
    if n_dense >= sizes.n_layers:
        return None
    width = (sizes.intermediate_size,) if experts.wide_as_mlp else ()
    return MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=keys.integer("expert_used_count", 1, n_experts),
        intermediate_size=keys.integer("expert_feed_forward_length", 1, MAX_WIDTH, *width),
        normalised=experts.normalised,
        in_layer=tuple(layer >= n_dense for layer in range(sizes.n_layers)),
        swiglu_limit=experts.swiglu_limit,
        swiglu_alpha=experts.swiglu_alpha,
        beside_mlp=experts.beside_mlp,
        shared_expert=experts.shared_expert,
        sigmoid=experts.sigmoid,
        weight_scale=scale,
    )


def expert_rules(config: ModelConfig, *, has_biases: bool = False) -> Iterator[TensorRule]:
    """Yield the rules of routers and experts, with GGUF's names as sources."""
    moe = config.moe
    if moe is None:
        return
    hidden, inner = config.hidden_size, moe.intermediate_size
    for layer in range(config.n_layers):
        if not moe.in_layer[layer]:
            continue
        router = router_rule(moe, hidden, layer, f"blk.{layer}.ffn_gate_inp.weight")
        yield router
        if has_biases:
            yield _bias_of(router)
        for expert in range(moe.n_experts):
            for part, shape in (
                ("gate", (inner, hidden)),
                ("up", (inner, hidden)),
                ("down", (hidden, inner)),
            ):
                matrix = TensorRule(
                    name=f"layers.{layer}.experts.{expert}.{part}.weight",
                    source=f"blk.{layer}.ffn_{part}_exps.weight",
                    shape=(moe.n_experts, *shape),
                    index=expert,
                )
                yield matrix if part == "down" or has_biases else _or_fused(matrix, part, layer)
                if has_biases:
                    yield _bias_of(matrix)


def expert_bias_rules(config: ModelConfig, tensors: Container[str]) -> Iterator[TensorRule]:
    """Yield the rules of the biases that the selection of experts adds, if a layer has them."""
    for layer in range(config.n_layers):
        source = f"blk.{layer}.exp_probs_b.bias"
        if config.moe is not None and config.moe.in_layer[layer] and source in tensors:
            yield expert_bias_rule(config.moe, layer, source)


def _or_fused(matrix: TensorRule, part: str, layer: int) -> TensorRule:
    """Return the rule of an expert's gate or up; a file may have both in one tensor, gate first."""
    n_experts, inner, hidden = matrix.shape
    fused = replace(
        matrix,
        source=f"blk.{layer}.ffn_gate_up_exps.weight",
        shape=(n_experts, 2 * inner, hidden),
        rows=(0, inner) if part == "gate" else (inner, 2 * inner),
    )
    return replace(matrix, otherwise=fused)


def _bias_of(matrix: TensorRule) -> TensorRule:
    """Return the rule of the biases of a matrix, which may be one of a stack."""
    return replace(
        matrix,
        name=matrix.name.removesuffix("weight") + "bias",
        source=matrix.source.removesuffix("weight") + "bias",
        shape=matrix.shape[:-1],
    )
