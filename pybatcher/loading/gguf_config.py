"""`read_config`: the `ModelConfig` that a GGUF file's metadata describe."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .families import ministral, smollm3
from .fields import Fields
from .limits import MAX_POSITIONS
from .llama_config import LlamaSizes, SizeNames, llama_config, read_sizes
from .model_config import ModelConfig
from .rope import Rope, read_rope

__all__ = ["ARCHITECTURES", "LongRopeDivisors", "read_config"]

ARCHITECTURES = ("llama", "qwen2", "qwen3", "smollm3", "phi3", "mistral3")


class LongRopeDivisors(NamedTuple):
    """Divisors of the rotary frequencies, (rotary_dim / 2,): for short contexts, and long ones."""

    short: NDArray[np.float64]
    long: NDArray[np.float64]


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
    keys = _ArchitectureKeys(fields, architecture)
    keys.refuse_unless("expert_count", 0)
    if architecture != "phi3":
        keys.refuse_unless("attention.sliding_window", 0)
    keys.refuse_unless("attention.causal", True)
    keys.refuse_unless("attention.scale")
    sizes = read_sizes(fields, _names(architecture))
    keys.refuse_unless("attention.value_length", sizes.head_dim)
    if architecture != "phi3":
        keys.refuse_unless("rope.dimension_count", sizes.head_dim)
    window = keys.integer("attention.sliding_window", 0, MAX_POSITIONS, 0)
    config = llama_config(
        sizes,
        architecture=architecture,
        vocab_size=vocab_size,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=_read_rope(keys, sizes, rope_divisors, longrope),
        sliding_windows=(window,) * sizes.n_layers,
    )
    if architecture == "smollm3":
        return smollm3.in_gguf(config)
    if architecture == "mistral3":
        beta = keys.number("attention.temperature_scale", 0.0, 1e3, 0.0)
        original = _original_positions(keys, sizes.max_position_embeddings)
        return ministral.with_query_beta(config, beta, original)
    return config


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


class _ArchitectureKeys:
    """Access to one architecture's keys without their prefix: `block_count` of `llama.`."""

    def __init__(self, fields: Fields, architecture: str) -> None:
        self.fields = fields
        self.prefix = f"{architecture}."

    def error(self, name: str, expected: str) -> Exception:
        return self.fields.error(self.prefix + name, expected)

    def integer(self, name: str, low: int, high: int, *default: int) -> int:
        value: int = self.fields.integer(self.prefix + name, low, high, *default)
        return value

    def number(self, name: str, low: float, high: float, *default: float) -> float:
        value: float = self.fields.number(self.prefix + name, low, high, *default)
        return value

    def refuse_unless(self, name: str, *allowed: object) -> None:
        self.fields.refuse_unless(self.prefix + name, *allowed)


def _read_rope(
    keys: _ArchitectureKeys,
    sizes: LlamaSizes,
    divisors: NDArray[np.float64] | None,
    longrope: LongRopeDivisors | None,
) -> Rope:
    """Translate the keys to config.json's fields and have `read_rope` read those."""
    head_dim, max_positions = sizes.head_dim, sizes.max_position_embeddings
    rotary_dim = keys.integer("rope.dimension_count", 2, head_dim, head_dim)
    if rotary_dim % 2:
        raise keys.error("rope.dimension_count", "an even number")
    if divisors is not None and divisors.shape != (head_dim // 2,):
        raise keys.error(
            "attention.key_length",
            f"twice the {divisors.size} elements of tensor rope_freqs.weight (it is {head_dim})",
        )
    for name in ("yarn_ext_factor", "yarn_attn_factor"):
        keys.refuse_unless(f"rope.scaling.{name}", 1.0)
    if longrope is None:
        keys.refuse_unless("rope.scaling.attn_factor", 1.0)
        scaling = _read_scaling(keys, max_positions)
    else:
        scaling = _read_longrope(keys, max_positions, longrope)
    scaling["rope_theta"] = keys.number("rope.freq_base", 1e-3, 1e12, 10000.0)
    source = Fields({"rope_parameters": scaling}, f"{keys.fields.source}: {keys.prefix}rope")
    return read_rope(source, head_dim, max_positions, divisors, rotary_dim=rotary_dim)


def _read_longrope(
    keys: _ArchitectureKeys, max_positions: int, longrope: LongRopeDivisors
) -> dict[str, Any]:
    """Return the fields of config.json's rope_parameters."""
    return {
        "rope_type": "longrope",
        "short_factor": longrope.short.tolist(),
        "long_factor": longrope.long.tolist(),
        "attention_factor": keys.number("rope.scaling.attn_factor", 1e-3, 1e3, 1.0),
        "original_max_position_embeddings": _original_positions(keys, max_positions),
    }


def _original_positions(keys: _ArchitectureKeys, max_positions: int) -> int:
    return keys.integer("rope.scaling.original_context_length", 1, MAX_POSITIONS, max_positions)


def _read_scaling(keys: _ArchitectureKeys, max_positions: int) -> dict[str, Any]:
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
            "original_max_position_embeddings": _original_positions(keys, max_positions),
            "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32.0),
            "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1.0),
        }
        if keys.prefix == "mistral3.":  # the one of these for which llama.cpp reads it
            all_dim = keys.number("rope.scaling.yarn_log_multiplier", 0.0, 1e3, 0.0)
            scaling |= {"mscale": 1.0, "mscale_all_dim": all_dim}
    return scaling
