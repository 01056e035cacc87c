"""Rotary position frequencies, with the checkpoint's RoPE scaling.

Sources: RoPE, Su et al. 2021 (arXiv:2104.09864); linear position interpolation,
Chen et al. 2023 (arXiv:2306.15595); YaRN, Peng et al. 2023 (arXiv:2309.00071);
"llama3" is the piecewise interpolation that Meta published with Llama 3.1.
Values are computed in float64 and rounded to float32 once, at the end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .fields import Fields

__all__ = ["Rope", "read_rope"]

_SUPPORTED = ("default", "linear", "llama3", "yarn")
_MAX_POSITIONS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary frequencies of a model, or of some of its layers.

    inv_freq: head_dim / 2 float32 values, in radians per position, with the checkpoint's RoPE
        scaling applied.
    attention_factor: multiplies cosines and sines (YaRN; 1.0 elsewhere).
    """

    inv_freq: tuple[float, ...]
    attention_factor: float


def read_rope(
    fields: Fields,
    head_dim: int,
    max_position_embeddings: int,
    divisors: NDArray[np.float64] | None = None,
    *,
    default_theta: float = 10000.0,
) -> Rope:
    """Return the frequencies that config.json describes, in either of its two forms.

    transformers 5 writes one object, `rope_parameters`; older files have `rope_theta`
    beside an optional `rope_scaling`. divisors: (head_dim / 2,), divide the scaled
    frequencies; a GGUF file has the scaling of Llama 3 in this form. default_theta: where
    config.json has no rope_theta. Raises ModelFormatError for an unsupported scaling or
    a value out of range.
    """
    name = "rope_scaling" if "rope_scaling" in fields else "rope_parameters"
    scaling = fields.child(name)
    source = scaling if "rope_theta" in scaling else fields
    theta = source.number("rope_theta", 1e-3, 1e12, default_theta)
    for owner in (fields, scaling):
        owner.refuse_unless("partial_rotary_factor", 1.0, 1)
    for nested in ("full_attention", "sliding_attention"):
        scaling.refuse_unless(nested)
    type_name = "rope_type" if "rope_type" in scaling else "type"
    rope_type = scaling.text(type_name, "default")
    if rope_type not in _SUPPORTED:
        raise scaling.error(type_name, "one of " + ", ".join(map(repr, _SUPPORTED)))

    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    inv_freq = np.power(theta, -exponents)
    attention_factor = 1.0
    if rope_type == "linear":
        inv_freq = inv_freq / _factor(scaling)
    elif rope_type == "llama3":
        inv_freq = _llama3(inv_freq, scaling, max_position_embeddings)
    elif rope_type == "yarn":
        if theta <= 1:
            raise source.error("rope_theta", "more than 1, as YaRN takes its logarithm")
        inv_freq, attention_factor = _yarn(inv_freq, theta, scaling, max_position_embeddings)
    if divisors is not None:
        inv_freq = inv_freq / divisors
    values = inv_freq.astype(np.float32).tolist()
    return Rope(tuple(values), float(np.float32(attention_factor)))


def _factor(scaling: Fields) -> float:
    factor: float = scaling.number("factor", 1e-3, 1e6)
    return factor


def _llama3(
    inv_freq: NDArray[np.float64], scaling: Fields, max_position_embeddings: int
) -> NDArray[np.float64]:
    """Divide low frequencies by `factor`, keep high ones, blend linearly between."""
    factor = _factor(scaling)
    low = scaling.number("low_freq_factor", 1e-3, 1e6)
    high = scaling.number("high_freq_factor", 1e-3, 1e6)
    if high <= low:
        raise scaling.error("high_freq_factor", f"more than low_freq_factor, {low:g}")
    old = scaling.integer(
        "original_max_position_embeddings", 1, _MAX_POSITIONS, max_position_embeddings
    )
    turns = old * inv_freq / (2 * math.pi)  # within the original context
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    blended: NDArray[np.float64] = (1 - smooth) * inv_freq / factor + smooth * inv_freq
    return blended


def _yarn(
    inv_freq: NDArray[np.float64], theta: float, scaling: Fields, max_position_embeddings: int
) -> tuple[NDArray[np.float64], float]:
    """Interpolate by parts: blend the dimensions between beta_slow and beta_fast turns.

    Returns the frequencies (head_dim / 2,) and the attention factor.
    """
    original = scaling.integer(
        "original_max_position_embeddings", 1, _MAX_POSITIONS, max_position_embeddings
    )
    factor = scaling.number("factor", 1e-3, 1e6, max_position_embeddings / original)
    attention_factor = scaling.number("attention_factor", 1e-3, 1e3, None)
    if attention_factor is None:
        mscale = scaling.number("mscale", 0.0, 1e3, 0.0)
        mscale_all_dim = scaling.number("mscale_all_dim", 0.0, 1e3, 0.0)
        if mscale and mscale_all_dim:
            attention_factor = _mscale(factor, mscale) / _mscale(factor, mscale_all_dim)
        else:
            attention_factor = _mscale(factor, 1.0)

    def dimension_of(turns: float) -> float:
        """Return the (fractional) dimension with so many turns in the original context."""
        wavelength = original / (turns * 2 * math.pi)
        return 2 * len(inv_freq) * math.log(wavelength) / (2 * math.log(theta))

    low = dimension_of(scaling.number("beta_fast", 1e-3, 1e6, 32.0))
    high = dimension_of(scaling.number("beta_slow", 1e-3, 1e6, 1.0))
    if scaling.boolean("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * len(inv_freq) - 1)
    if low == high:
        high += 0.001
    interpolated = np.clip((np.arange(len(inv_freq)) - low) / (high - low), 0.0, 1.0)
    blended = inv_freq / factor * interpolated + inv_freq * (1 - interpolated)
    return blended, float(attention_factor)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
