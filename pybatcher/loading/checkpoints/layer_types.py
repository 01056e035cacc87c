"""Read the type of each layer, and the rotary frequencies of the types with and without window."""

from __future__ import annotations

from typing import Any

from .fields import Fields
from .limits import MAX_LAYERS
from .rope import Rope, read_rope

__all__ = ["read_layer_types", "read_ropes", "read_sliding_layers"]

_KINDS = ("full_attention", "sliding_attention")


def read_sliding_layers(fields: Fields, n_layers: int, period: int) -> tuple[bool, ...]:
    """Return, for each layer, True if `layer_types` lists it as a sliding-window layer.

    period: without that field, every `period`-th layer has full attention; older files may have
    the period in `sliding_window_pattern`. Raises ModelFormatError for other layer types.
    """
    return read_layer_types(fields, n_layers, _KINDS, "sliding_window_pattern", period)


def read_layer_types(
    fields: Fields, n_layers: int, kinds: tuple[str, str], period_name: str, period: int
) -> tuple[bool, ...]:
    """Return, for each layer, True if `layer_types` lists it as the second of two kinds.

    Without that field, every `period`-th layer is of the first kind; the field `period_name` may
    have another period. Raises ModelFormatError for other layer types.
    """
    found = fields.get("layer_types")
    if found is None:
        period = fields.integer(period_name, 1, MAX_LAYERS, period)
        return tuple((layer + 1) % period != 0 for layer in range(n_layers))
    if not isinstance(found, list) or len(found) != n_layers:
        raise fields.error("layer_types", f"a list of {n_layers} layer types")
    if any(not isinstance(kind, str) or kind not in kinds for kind in found):
        raise fields.error("layer_types", "a list of " + " and ".join(map(repr, kinds)))
    return tuple(kind == kinds[1] for kind in found)


def read_ropes(
    fields: Fields,
    head_dim: int,
    max_position_embeddings: int,
    thetas: tuple[tuple[str, float], tuple[str, float]],
) -> tuple[Rope, Rope]:
    """Return the rotary frequencies of full-attention layers and of sliding-window layers.

    transformers 5 writes `rope_parameters` with an object for each layer type. Older files have
    a field for each type. thetas: names and defaults of these fields, for full-attention layers
    first; a `rope_scaling` applies to full-attention layers only. Raises ModelFormatError.
    """
    fields.refuse_unless("partial_rotary_factor", 1.0, 1)
    by_type = fields.child("rope_parameters")
    for flat in ("rope_theta", "rope_type"):
        by_type.refuse_unless(flat)
    ropes = []
    for kind, (name, default) in zip(_KINDS, thetas, strict=True):
        theta = fields.number(name, 1e-3, 1e12, default)
        values: dict[str, Any] = {"rope_theta": theta}
        if kind in by_type:
            by_type.child(kind)
            values["rope_parameters"] = {"rope_theta": theta, **by_type.get(kind)}
        elif kind == "full_attention":
            values["rope_scaling"] = fields.get("rope_scaling")
        source = Fields(values, f"{fields.source}: {kind}")
        ropes.append(read_rope(source, head_dim, max_position_embeddings))
    return ropes[0], ropes[1]
