"""`read_gguf_rope`: the rotary frequencies that a GGUF file's metadata describe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_POSITIONS
from ..checkpoints.llama_config import LlamaSizes
from ..checkpoints.rope import Rope, read_rope
from .gguf_keys import ArchitectureKeys

__all__ = ["LongRopeDivisors", "original_positions", "read_gguf_rope"]


class LongRopeDivisors(NamedTuple):
    """The divisors of the rotary frequencies, (rotary_dim / 2,), for short and long contexts."""

    short: NDArray[np.float64]
    long: NDArray[np.float64]


def read_gguf_rope(
    keys: ArchitectureKeys,
    sizes: LlamaSizes,
    divisors: NDArray[np.float64] | None,
    longrope: LongRopeDivisors | None,
    *,
    has_yarn_log_multiplier: bool = False,
    truncates_yarn: bool = True,
) -> Rope:
    """Return the frequencies: `read_rope` reads the keys after a translation to config.json.

    divisors: the divisors of the frequencies, (head_dim / 2,); None: no division.
    longrope: the divisors of LongRoPE; None: the file has none.
    has_yarn_log_multiplier: True if the architecture has that key.
    truncates_yarn: True if the dimensions between which YaRN interpolates are rounded to integers.

    Raises ModelFormatError for an unsupported scaling or a value out of range.
    """
    head_dim, max_positions = sizes.head_dim, sizes.max_position_embeddings
    rotary_dim = keys.integer("rope.dimension_count", 2, head_dim, head_dim)
    if rotary_dim % 2:
        raise keys.error("rope.dimension_count", "an even number")
    if divisors is not None and divisors.shape != (head_dim // 2,):
        raise keys.error(
            "attention.key_length",
            f"twice the {divisors.size} elements of tensor rope_freqs.weight (it is {head_dim})",
        )
    keys.refuse_unless("rope.scaling.yarn_ext_factor", 1.0)
    factor = _attention_factor(keys)
    if longrope is None:
        scaling = _read_scaling(keys, max_positions, has_yarn_log_multiplier)
        scaling["truncate"] = truncates_yarn
    else:
        scaling = _read_longrope(keys, max_positions, longrope)
    is_plain = scaling["rope_type"] in ("default", "linear")
    if factor is not None and not is_plain:
        scaling["attention_factor"] = factor
    scaling["rope_theta"] = keys.number("rope.freq_base", 1e-3, 1e12, 10000.0)
    source = Fields({"rope_parameters": scaling}, f"{keys.fields.source}: {keys.prefix}rope")
    rope = read_rope(source, head_dim, max_positions, divisors, rotary_dim=rotary_dim)
    return replace(rope, attention_factor=factor) if is_plain and factor is not None else rope


def _attention_factor(keys: ArchitectureKeys) -> float | None:
    """Return the factor of query and key that the file names; None: that of the scaling.

    llama.cpp's converter writes config.json's `attention_factor` to either key: it is the whole
    factor and replaces the one that YaRN derives from its scaling. llama.cpp ignores one key with
    YaRN, and multiplies the derived factor by the other; transformers computes neither.
    """
    names = [f"rope.scaling.{name}" for name in ("yarn_attn_factor", "attn_factor")]
    found = [keys.number(name, 1e-3, 1e3) for name in names if keys.get(name) is not None]
    if len({*found}) > 1:
        raise keys.error(names[1], f"{found[0]:g}, as in {keys.prefix}{names[0]}")
    return found[0] if found else None


def _read_longrope(
    keys: ArchitectureKeys, max_positions: int, longrope: LongRopeDivisors
) -> dict[str, Any]:
    """Return the fields of config.json's rope_parameters."""
    return {
        "rope_type": "longrope",
        "short_factor": longrope.short.tolist(),
        "long_factor": longrope.long.tolist(),
        "attention_factor": 1.0,
        "original_max_position_embeddings": original_positions(keys, max_positions),
    }


def original_positions(keys: ArchitectureKeys, max_positions: int) -> int:
    """Return the positions of the original training; `max_positions` if the key is absent."""
    return keys.integer("rope.scaling.original_context_length", 1, MAX_POSITIONS, max_positions)


def _read_scaling(
    keys: ArchitectureKeys, max_positions: int, has_yarn_log_multiplier: bool
) -> dict[str, Any]:
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
            "original_max_position_embeddings": original_positions(keys, max_positions),
            "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32.0),
            "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1.0),
        }
        if has_yarn_log_multiplier:
            all_dim = keys.number("rope.scaling.yarn_log_multiplier", 0.0, 1e3, 0.0)
            scaling |= {"mscale": 1.0, "mscale_all_dim": all_dim}
    return scaling
