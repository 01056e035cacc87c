"""`Scheme`: how the matrices of a checkpoint are quantised, as quantization_config says it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...checkpoints.fields import Fields
from ...checkpoints.limits import MAX_WIDTH
from ...checkpoints.stored_weight import StoredWeight
from .parts import Parts

__all__ = ["WAY_OUT", "Scheme", "check_names", "read_group_size"]

WAY_OUT = (
    "the model's bf16, f16 or f32 checkpoint is read, quantised while it is loaded with "
    "dtype='int8', 'int4' or 'q4_k_m'; and its GGUF files are"
)
_SAID_BEFORE = ("quant_method",)


@dataclass(frozen=True, slots=True)
class Scheme:
    """How to make matrices of a checkpoint's tensors.

    marks: the last part of the name of a tensor that every quantised module has, and no other; of
        several names a module has one.
    matrix: makes the matrix of the parts of such a module; raises ModelFormatError.
    """

    marks: tuple[str, ...]
    matrix: Callable[[Parts], StoredWeight]


def check_names(fields: Fields, known: Iterable[str]) -> None:
    """Raise ModelFormatError for a field whose meaning is not known."""
    unknown = sorted(set(fields.names()) - {*known, *_SAID_BEFORE})
    for name in unknown:
        if fields.get(name) is not None:
            raise fields.error(name, f"no such field; {WAY_OUT}")


def read_group_size(fields: Fields, name: str) -> int:
    """Return the number of inputs that share a scale; -1: all."""
    size: int = fields.integer(name, -1, MAX_WIDTH)
    if size != -1 and (size < 32 or size % 32):
        raise fields.error(name, f"-1, or a multiple of 32; {WAY_OUT}")
    return size
