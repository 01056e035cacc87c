"""Rotary position frequencies, with the checkpoint's RoPE scaling.

The methods are RoPE, Su et al. 2021 (arXiv:2104.09864); linear position interpolation, Chen et
al. 2023 (arXiv:2306.15595); YaRN, Peng et al. 2023 (arXiv:2309.00071); LongRoPE, Ding et al. 2024
(arXiv:2402.13753); and "llama3", the piecewise interpolation that Meta published with Llama 3.1.
Values are computed in float64 and rounded to float32 once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from .fields import Fields
from .limits import MAX_POSITIONS, NonNegative, Positive, Range

__all__ = [
    "Rope",
    "multimodal_axes",
    "read_original_positions",
    "read_proportional_rope",
    "read_rope",
    "read_rotary_dim",
    "rotary_order",
]

_SUPPORTED = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_MAX_POSITIONS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotary frequencies of a model, or of some of its layers.

    `csrc/config/config_fields.def` documents the scalar fields.
    inv_freq: head_dim / 2 float32 values, in radians per position, with the checkpoint's RoPE
        scaling applied. Pairs that are not rotated have 0: with a partial rotary embedding these
        are the last ones.
    long_inv_freq: the frequencies of an engine whose sequences may have more than
        `original_positions`; empty: `inv_freq` is used at any length.
    axes: for each frequency, which of a row's three positions (time, height, width) it multiplies;
        empty: each row has one position.
    """

    inv_freq: tuple[float, ...]
    attention_factor: Positive = 1.0
    long_inv_freq: tuple[float, ...] = ()
    query_beta: NonNegative = 0.0
    original_positions: Annotated[int, Range(0, MAX_POSITIONS)] = 0
    axes: tuple[int, ...] = ()

    @property
    def rotary_dim(self) -> int:
        """The rotated dimensions of a head."""
        return 2 * sum(frequency > 0 for frequency in self.inv_freq)


def read_rope(
    fields: Fields,
    head_dim: int,
    max_position_embeddings: int,
    divisors: NDArray[np.float64] | None = None,
    *,
    default_theta: float = 10000.0,
    default_original: int | None = None,
    rotary_dim: int | None = None,
    aliases: Mapping[str, str] | None = None,
    has_alpha: bool = False,
) -> Rope:
    """Return the frequencies that config.json describes, in either of its two forms.

    transformers 5 writes one object, `rope_parameters`; older files have `rope_theta` and an
    optional `rope_scaling`.

    divisors: (head_dim / 2,), divide the scaled frequencies; a GGUF file has the scaling of
        Llama 3 in this form.
    default_theta: the default of rope_theta.
    default_original: the default of original_max_position_embeddings; None:
        max_position_embeddings.
    rotary_dim: the rotated dimensions of a head, from `read_rotary_dim`; None: all dimensions,
        and a file with another number is refused.
    aliases: other names of scalings.
    has_alpha: True if `alpha` of a dynamic scaling fixes the scaling, as in HunYuan's files: it
        multiplies the base by alpha^(head_dim / (head_dim - 2)).

    Raises ModelFormatError for an unsupported scaling or a value out of range.
    """
    scaling = _scaling(fields)
    source = scaling if "rope_theta" in scaling else fields
    theta = source.number("rope_theta", 1e-3, 1e12, default_theta)
    if rotary_dim is None:
        rotary_dim = head_dim
        for owner in (fields, scaling):
            owner.refuse_unless("partial_rotary_factor", 1.0, 1)
    for nested in ("full_attention", "sliding_attention"):
        scaling.refuse_unless(nested)
    type_name = "rope_type" if "rope_type" in scaling else "type"
    rope_type = scaling.text(type_name, "default")
    rope_type = (aliases or {}).get(rope_type, rope_type)
    if rope_type not in _SUPPORTED:
        raise scaling.error(type_name, "one of " + ", ".join(map(repr, _SUPPORTED)))

    is_fixed = has_alpha and rope_type == "dynamic" and "alpha" in scaling
    if is_fixed:
        if head_dim == 2:
            raise scaling.error("alpha", "none with a head_dim of 2")
        theta *= scaling.number("alpha", 1e-3, 1e6) ** (head_dim / (head_dim - 2))
    exponents = np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim
    inv_freq = np.power(theta, -exponents)
    long_inv_freq = inv_freq[:0]
    attention_factor = 1.0
    original = read_original_positions(fields, scaling, default_original or max_position_embeddings)
    if rope_type == "linear":
        inv_freq = inv_freq / _factor(scaling)
    elif rope_type == "llama3":
        inv_freq = _llama3(inv_freq, scaling, original)
    elif rope_type == "yarn":
        if theta <= 1:
            raise source.error("rope_theta", "more than 1, as YaRN takes its logarithm")
        factor = scaling.number("factor", 1e-3, 1e6, max_position_embeddings / original)
        inv_freq, attention_factor = _yarn(inv_freq, theta, scaling, original, factor)
    elif rope_type == "longrope":
        factor = scaling.number("factor", 1e-3, 1e6, max_position_embeddings / original)
        attention_factor = _longrope_attention_factor(scaling, original, factor)
        long_inv_freq = inv_freq / scaling.numbers("long_factor", len(inv_freq), 1e-3, 1e6)
        inv_freq = inv_freq / scaling.numbers("short_factor", len(inv_freq), 1e-3, 1e6)
    elif rope_type == "dynamic" and not is_fixed:
        # "dynamic" scales past max_position_embeddings only, and no sequence grows past that.
        _factor(scaling)
    if divisors is not None:
        inv_freq = inv_freq / divisors
    return Rope(
        _padded(inv_freq, head_dim),
        float(np.float32(attention_factor)),
        long_inv_freq=_padded(long_inv_freq, head_dim) if long_inv_freq.size else (),
        original_positions=original if long_inv_freq.size else 0,
    )


def _scaling(fields: Fields) -> Fields:
    """Return the object that describes the scaling; an empty `rope_scaling` means no scaling."""
    has_older = fields.get("rope_scaling") not in (None, {})
    return fields.child("rope_scaling" if has_older else "rope_parameters")


def read_proportional_rope(scaling: Fields, head_dim: int) -> Rope:
    """Return the frequencies of `rope_type` "proportional".

    The first pairs, a part `partial_rotary_factor` of the head, have the frequencies of a fully
    rotated head; the other pairs are not rotated.
    """
    theta = scaling.number("rope_theta", 1e-3, 1e12)
    part = scaling.number("partial_rotary_factor", 0.0, 1.0, 1.0)
    exponents = np.arange(0, 2 * int(part * head_dim // 2), 2, dtype=np.float64) / head_dim
    inv_freq = np.power(theta, -exponents) / scaling.number("factor", 1e-3, 1e6, 1.0)
    return Rope(_padded(inv_freq, head_dim), attention_factor=1.0)


def read_rotary_dim(fields: Fields, head_dim: int) -> int:
    """Return the rotated dimensions of a head, an even number, by `partial_rotary_factor`."""
    owner = _scaling(fields)
    if "partial_rotary_factor" not in owner:
        owner = fields
    rotary_dim = int(head_dim * owner.number("partial_rotary_factor", 0.0, 1.0, 1.0))
    if rotary_dim < 2 or rotary_dim % 2:
        raise owner.error("partial_rotary_factor", f"an even part of head_dim, {head_dim}")
    return rotary_dim


def multimodal_axes(
    scaling: Fields, head_dim: int, default: tuple[int, int, int], *, interleaved: bool
) -> tuple[int, ...]:
    """Return `Rope.axes` of a text model whose rows have a time, a row and a column.

    `mrope_section` of `scaling` has the number of frequencies of each axis. They are neighbours, or
    interleaved: every third frequency, beginning with the second and the third one, is of the row
    and of the column, as far as these have so many; the other ones are of the time.

    Raises ModelFormatError.
    """
    name = "mrope_section"
    found = scaling.get(name)
    section = list(default) if found is None else found
    is_list = isinstance(section, list) and len(section) == len(default)
    half = head_dim // 2
    if not is_list or any(type(n) is not int or not 0 <= n <= half for n in section):
        raise scaling.error(name, f"a list of 3 whole numbers from 0 to {half}")
    axes = [0] * half
    if interleaved:
        for axis in (1, 2):
            for i in range(axis, min(3 * section[axis], half), 3):
                axes[i] = axis
    else:
        if sum(section) != half:
            raise scaling.error(name, f"a list whose sum is {half}")
        first = section[0]
        for axis in (1, 2):
            axes[first : first + section[axis]] = [axis] * section[axis]
            first += section[axis]
    return tuple(axes)


def rotary_order(head_dim: int, rotary_dim: int, *, interleaved: bool = False) -> tuple[int, ...]:
    """Return the order of a head's rows in which rows i and i + head_dim / 2 rotate together.

    In the checkpoint, rows i < rotary_dim / 2 and i + rotary_dim / 2 rotate together, or, if rows
    are interleaved, rows 2i and 2i + 1. The rows from rotary_dim on are not rotated; their pairs
    have frequency 0 in the result. () means that the order is that of the checkpoint.
    """
    half, kept = rotary_dim // 2, (head_dim - rotary_dim) // 2
    if kept == 0 and not interleaved:
        return ()
    first = range(0, rotary_dim, 2) if interleaved else range(half)
    second = range(1, rotary_dim, 2) if interleaved else range(half, rotary_dim)
    low = (*first, *range(rotary_dim, rotary_dim + kept))
    high = (*second, *range(rotary_dim + kept, head_dim))
    return low + high


def _padded(inv_freq: NDArray[np.float64], head_dim: int) -> tuple[float, ...]:
    values: list[float] = inv_freq.astype(np.float32).tolist()
    return (*values, *[0.0] * (head_dim // 2 - len(values)))


def read_original_positions(fields: Fields, scaling: Fields, default: int) -> int:
    """Return the positions of the original training; `fields` takes precedence over `scaling`."""
    name = "original_max_position_embeddings"
    owner = fields if name in fields else scaling
    original: int = owner.integer(name, 1, _MAX_POSITIONS, default)
    return original


def _factor(scaling: Fields) -> float:
    factor: float = scaling.number("factor", 1e-3, 1e6)
    return factor


def _llama3(inv_freq: NDArray[np.float64], scaling: Fields, original: int) -> NDArray[np.float64]:
    """Divide low frequencies by `factor`, keep high frequencies, interpolate linearly between."""
    factor = _factor(scaling)
    low = scaling.number("low_freq_factor", 1e-3, 1e6)
    high = scaling.number("high_freq_factor", 1e-3, 1e6)
    if high <= low:
        raise scaling.error("high_freq_factor", f"more than low_freq_factor, {low:g}")
    turns = original * inv_freq / (2 * math.pi)  # within the original context
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    blended: NDArray[np.float64] = (1 - smooth) * inv_freq / factor + smooth * inv_freq
    return blended


def _yarn(
    inv_freq: NDArray[np.float64], theta: float, scaling: Fields, original: int, factor: float
) -> tuple[NDArray[np.float64], float]:
    """Interpolate by parts: blend dimensions that make beta_slow to beta_fast rotations.

    Returns the frequencies (head_dim / 2,) and the attention factor.
    """
    attention_factor = scaling.number("attention_factor", 1e-3, 1e3, None)
    if attention_factor is None:
        mscale = scaling.number("mscale", 0.0, 1e3, 0.0)
        mscale_all_dim = scaling.number("mscale_all_dim", 0.0, 1e3, 0.0)
        if mscale and mscale_all_dim:
            attention_factor = _mscale(factor, mscale) / _mscale(factor, mscale_all_dim)
        else:
            attention_factor = _mscale(factor, 1.0)

    def dimension_of(turns: float) -> float:
        """Return the fractional dimension that makes `turns` rotations in the original context."""
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


def _longrope_attention_factor(scaling: Fields, original: int, factor: float) -> float:
    """Return the factor of LongRoPE: sqrt(1 + log(factor) / log(original))."""
    default = 1.0
    if factor > 1:
        if original < 2:
            raise scaling.error("original_max_position_embeddings", "more than 1")
        default = math.sqrt(1 + math.log(factor) / math.log(original))
    found: float = scaling.number("attention_factor", 1e-3, 1e3, default)
    return found


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
