"""`ShortConvConfig`: the layers of a model that are recurrent, by a gated short convolution."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ShortConvConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvConfig:
    """Layers that have no attention, but see the last few positions alone (arXiv:2511.23404).

    conv_size: positions that the convolution sees, its own included: 2 or more.
    in_layer: for each layer, whether it is one.
    """

    conv_size: int
    in_layer: tuple[bool, ...]
