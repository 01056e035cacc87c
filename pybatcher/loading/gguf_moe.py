"""The mixtures of experts of a GGUF file: its keys, and the rules of its tensors.

llama.cpp has Mixtral as a `llama` with experts, and always normalises the weights of the chosen
experts, in all architectures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .families import gpt_oss
from .fields import Fields
from .limits import MAX_WIDTH
from .llama_config import LlamaSizes
from .model_config import ModelConfig
from .moe import MAX_EXPERTS, MAX_EXPERTS_OF_MODEL, MoeConfig
from .tensors import TensorRule

__all__ = ["expert_rules", "read_moe"]

# llama.cpp's gating functions.
_SOFTMAX = 1
_SOFTMAX_OF_CHOSEN = 3
_ARCHITECTURES = ("llama", "qwen3moe", "gpt-oss", "gemma4")
_WIDE_AS_MLP = ("llama", "gpt-oss")  # experts, where the file does not say how wide they are


def read_moe(fields: Fields, architecture: str, sizes: LlamaSizes) -> MoeConfig | None:
    """Return the experts that the metadata of `architecture` describe; None: it has none.

    Raises ModelFormatError for a value out of range, or one that the engine cannot do.
    """
    is_oss = architecture == "gpt-oss"
    always = is_oss or architecture == "qwen3moe"
    name = f"{architecture}.expert_count"
    if architecture not in _ARCHITECTURES:
        fields.refuse_unless(name, 0)
        return None
    n_experts = fields.integer(name, 1 if always else 0, MAX_EXPERTS, *(() if always else (0,)))
    if n_experts == 0:
        return None
    if n_experts * sizes.n_layers > MAX_EXPERTS_OF_MODEL:
        raise fields.error(name, f"at most {MAX_EXPERTS_OF_MODEL} experts in all layers")
    fields.refuse_unless(f"{architecture}.expert_shared_count", 0)
    fields.refuse_unless(
        f"{architecture}.expert_gating_func", _SOFTMAX_OF_CHOSEN if is_oss else _SOFTMAX
    )
    fields.refuse_unless(f"{architecture}.expert_weights_norm", True)
    fields.refuse_unless(f"{architecture}.expert_weights_scale", 0.0, 1.0)
    default = (sizes.intermediate_size,) if architecture in _WIDE_AS_MLP else ()
    return MoeConfig(
        n_experts=n_experts,
        n_experts_per_row=fields.integer(f"{architecture}.expert_used_count", 1, n_experts),
        intermediate_size=fields.integer(
            f"{architecture}.expert_feed_forward_length", 1, MAX_WIDTH, *default
        ),
        normalised=True,
        in_layer=(True,) * sizes.n_layers,
        swiglu_limit=gpt_oss.SWIGLU_LIMIT if is_oss else 0.0,
        swiglu_alpha=gpt_oss.SWIGLU_ALPHA if is_oss else 1.0,
        beside_mlp=architecture == "gemma4",
    )


def expert_rules(config: ModelConfig) -> Iterator[TensorRule]:
    """Yield the rules of routers and experts, with GGUF's names as sources."""
    moe = config.moe
    if moe is None:
        return
    hidden, inner = config.hidden_size, moe.intermediate_size
    has_biases = config.architecture == "gpt_oss"
    for layer in range(config.n_layers):
        router = TensorRule(
            name=f"layers.{layer}.router.weight",
            source=f"blk.{layer}.ffn_gate_inp.weight",
            shape=(moe.n_experts, hidden),
        )
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
                yield matrix
                if has_biases:
                    yield _bias_of(matrix)


def _bias_of(matrix: TensorRule) -> TensorRule:
    """Return the rule of the biases of a matrix, or of one in a stack."""
    return replace(
        matrix,
        name=matrix.name.removesuffix("weight") + "bias",
        source=matrix.source.removesuffix("weight") + "bias",
        shape=matrix.shape[:-1],
    )
