"""`read_config`: the `ModelConfig` that a GGUF file's metadata describe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .fields import Fields
from .gguf_architectures import ARCHITECTURES
from .gguf_keys import ArchitectureKeys
from .gguf_moe import read_moe
from .limits import MAX_POSITIONS
from .llama_config import SizeNames, llama_config, read_sizes
from .model_config import ModelConfig
from .rope import Rope, read_rope

__all__ = ["read_config"]


def read_config(
    fields: Fields, vocab_size: int, rope_divisors: NDArray[np.float64] | None
) -> ModelConfig:
    """Return the model's configuration.

    vocab_size: rows of the token embedding; the key of that name may be absent, or wrong.
    rope_divisors: divisors of the rotary frequencies, (head_dim / 2,); None: no division.

    Raises ModelFormatError for an unsupported architecture or option, or an impossible size.
    """
    architecture = fields.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise fields.error("general.architecture", "one of " + ", ".join(map(repr, ARCHITECTURES)))
    keys = ArchitectureKeys(fields, architecture)
    keys.refuse_unless("attention.causal", True)
    own = ARCHITECTURES[architecture]
    if not own.has_windows:
        keys.refuse_unless("attention.sliding_window", 0)
    if not own.has_attention_scale:
        keys.refuse_unless("attention.scale")
    sizes = read_sizes(fields, _names(architecture))
    keys.refuse_unless("attention.value_length", sizes.head_dim)
    keys.refuse_unless("rope.dimension_count", sizes.head_dim)
    config = llama_config(
        sizes,
        architecture="qwen3_moe" if architecture == "qwen3moe" else architecture,
        vocab_size=vocab_size,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=_read_rope(keys, sizes.head_dim, sizes.max_position_embeddings, rope_divisors),
        sliding_windows=(0,) * sizes.n_layers,
    )
    config = replace(config, moe=read_moe(fields, architecture, sizes))
    return own.change(keys, config)


def _names(architecture: str) -> SizeNames:
    return SizeNames(
        hidden_size=f"{architecture}.embedding_length",
        n_layers=f"{architecture}.block_count",
        n_heads=f"{architecture}.attention.head_count",
        n_kv_heads=f"{architecture}.attention.head_count_kv",
        head_dim=f"{architecture}.attention.key_length",
        intermediate_size=f"{architecture}.feed_forward_length",
        max_position_embeddings=f"{architecture}.context_length",
    )


def _read_rope(
    keys: ArchitectureKeys, head_dim: int, max_positions: int, divisors: NDArray[np.float64] | None
) -> Rope:
    """Translate the keys to config.json's fields and have `read_rope` read those."""
    if divisors is not None and divisors.shape != (head_dim // 2,):
        raise keys.error(
            "attention.key_length",
            f"twice the {divisors.size} elements of tensor rope_freqs.weight (it is {head_dim})",
        )
    for name in ("attn_factor", "yarn_ext_factor", "yarn_attn_factor"):
        keys.refuse_unless(f"rope.scaling.{name}", 1.0)
    scaling = {
        "rope_theta": keys.number("rope.freq_base", 1e-3, 1e12, 10000.0),
        **_read_scaling(keys, max_positions),
    }
    source = Fields({"rope_parameters": scaling}, f"{keys.fields.source}: {keys.prefix}rope")
    return read_rope(source, head_dim, max_positions, divisors)


def _read_scaling(keys: ArchitectureKeys, max_positions: int) -> dict[str, Any]:
    """Return the fields of config.json's rope_parameters.

    A factor of 0 means no scaling, as in llama.cpp.
    """
    name = "rope.scaling.type"
    kind = keys.fields.text(keys.prefix + name, "linear")
    if kind not in ("none", "linear", "yarn"):
        raise keys.error(name, "'none', 'linear' or 'yarn'")
    old = keys.number("rope.scale_linear", 0.0, 1e6, 0.0)
    factor = keys.number("rope.scaling.factor", 0.0, 1e6, old)
    if kind == "none" or factor == 0:
        return {"rope_type": "default"}
    scaling = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaling |= {
            "original_max_position_embeddings": keys.integer(
                "rope.scaling.original_context_length", 1, MAX_POSITIONS, max_positions
            ),
            "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32.0),
            "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1.0),
        }
    return scaling
