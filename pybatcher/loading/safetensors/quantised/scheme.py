"""`Scheme`: the quantisation of a checkpoint's matrices, read from quantization_config."""

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
    """A function that makes the matrix of a quantised module, and names that identify the module.

    marks: last parts of tensor names. Every quantised module has a tensor with one of these names,
        and no other module has.
    matrix: makes the matrix from the module's parts; raises ModelFormatError.
    """

    marks: tuple[str, ...]
    matrix: Callable[[Parts], StoredWeight]


def check_names(fields: Fields, known: Iterable[str]) -> None:
    """Raise ModelFormatError for a field that is not in `known`."""
    unknown = sorted(set(fields.names()) - {*known, *_SAID_BEFORE})
    for name in unknown:
        if fields.get(name) is not None:
            raise fields.error(name, f"no such field; {WAY_OUT}")


def read_group_size(fields: Fields, name: str) -> int:
    """Return the number of inputs that share a scale; -1 means all inputs."""
    size: int = fields.integer(name, -1, MAX_WIDTH)
    if size != -1 and (size < 32 or size % 32):
        raise fields.error(name, f"-1, or a multiple of 32; {WAY_OUT}")
    return size
