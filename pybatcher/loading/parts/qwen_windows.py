"""`read_windows`: the sliding windows of Qwen2 and Qwen3."""

from __future__ import annotations

from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_LAYERS, MAX_POSITIONS
from .llama_like import read_layer_windows, read_n_layers

__all__ = ["read_windows"]

_WINDOW = 4096


def read_windows(fields: Fields) -> tuple[int, ...]:
    """Return the window of each layer; 0 = none.

    The layers with a window are the sliding ones of `layer_types`, else those from
    `max_window_layers` on, if `use_sliding_window` is set.
    """
    n_layers = read_n_layers(fields)
    fields = fields.with_defaults({"sliding_window": _WINDOW})
    window = fields.integer("sliding_window", 1, MAX_POSITIONS, 0)
    if not fields.boolean("use_sliding_window", False):
        window = 0
    if fields.get("layer_types") is not None:
        return read_layer_windows(fields, window, n_layers)
    first = fields.integer("max_window_layers", 0, MAX_LAYERS, 28)
    return tuple(window if layer >= first else 0 for layer in range(n_layers))
