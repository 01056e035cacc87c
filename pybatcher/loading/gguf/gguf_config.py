"""`read_config`: the `ModelConfig` that a GGUF file's metadata describe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.fields import Fields
from ..checkpoints.llama_config import SizeNames, llama_config, read_sizes
from ..checkpoints.model_config import ModelConfig
from .gguf_architectures import ARCHITECTURES
from .gguf_keys import ArchitectureKeys
from .gguf_moe import read_moe
from .gguf_rope import LongRopeDivisors, read_gguf_rope

__all__ = ["read_config"]


def read_config(
    fields: Fields,
    vocab_size: int,
    rope_divisors: NDArray[np.float64] | None,
    longrope: LongRopeDivisors | None = None,
) -> ModelConfig:
    """Return the model's configuration.

    vocab_size: rows of the token embedding; the key of that name may be absent, or wrong.
    rope_divisors: divisors of the rotary frequencies, (head_dim / 2,); None: no division.
    longrope: LongRoPE's; None: the file has none.

    Raises ModelFormatError for an unsupported architecture or option, or an impossible size.
    """
    architecture = fields.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise fields.error("general.architecture", "one of " + ", ".join(map(repr, ARCHITECTURES)))
    keys = ArchitectureKeys(fields, architecture)
    own = ARCHITECTURES[architecture]
    if own.read is not None:
        keys.refuse_unless("attention.causal", True)
        return own.read(keys, vocab_size, rope_divisors)
    if not own.has_windows:
        keys.refuse_unless("attention.sliding_window", 0)
    if not own.has_attention_scale:
        keys.refuse_unless("attention.scale")
    sizes = read_sizes(own.plain(keys), _names(architecture, own.width))
    keys.refuse_unless("attention.value_length", sizes.head_dim)
    if own.read_encoder is not None:
        return own.read_encoder(keys, sizes, vocab_size)
    keys.refuse_unless("attention.causal", own.is_causal)
    if not own.has_rotary_dim:
        keys.refuse_unless("rope.dimension_count", sizes.head_dim)
    rope = read_gguf_rope(
        keys,
        sizes,
        rope_divisors,
        longrope,
        has_yarn_log_multiplier=own.has_yarn_log_multiplier,
        truncates_yarn=own.truncates_yarn,
    )
    config = llama_config(
        sizes,
        architecture=own.config_name or architecture,
        vocab_size=vocab_size,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=rope,
        sliding_windows=(0,) * sizes.n_layers,
    )
    config = replace(config, moe=read_moe(keys, own.experts, sizes))
    return own.change(keys, config)


def _names(architecture: str, width: str) -> SizeNames:
    return SizeNames(
        hidden_size=f"{architecture}.embedding_length",
        n_layers=f"{architecture}.block_count",
        n_heads=f"{architecture}.attention.head_count",
        n_kv_heads=f"{architecture}.attention.head_count_kv",
        head_dim=f"{architecture}.attention.key_length",
        intermediate_size=f"{architecture}.{width}",
        max_position_embeddings=f"{architecture}.context_length",
    )
