"""Checkpoints of quantised weights: GPTQ, AWQ, compressed-tensors and FP8.

`read_scheme` reads quantization_config of config.json; `with_matrices` adds a matrix for each
quantised module. Each format has a module in this package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...checkpoints.fields import Fields, shown_name
from ...checkpoints.stored_weight import StoredWeight
from ...checkpoints.tensors import Tensor
from . import awq, compressed_tensors, float8, gptq
from .parts import Parts
from .scheme import WAY_OUT, Scheme

__all__ = ["StoredWeight", "read_scheme", "with_matrices"]

_READERS = {
    "gptq": gptq.read,
    "awq": awq.read,
    "compressed-tensors": compressed_tensors.read,
    "fp8": float8.read,
}
_NUMBERS = ("weight", "weight_packed")
_NEED_SCALES = ("F8_E4M3", "I8")


def read_scheme(fields: Fields) -> Scheme | None:
    """Return the quantisation scheme in config.json; None for MXFP4 and for plain weights.

    Raises ModelFormatError for an unknown method or option.
    """
    name = "quantization_config"
    if fields.get(name) is None:
        return None
    config = fields.child(name)
    method = config.get("quant_method")
    if method == "mxfp4" and fields.get("model_type") == "gpt_oss":
        return None  # the family's own rules read these tensors
    if not isinstance(method, str) or method not in _READERS:
        raise config.error("quant_method", f"one of {', '.join(map(repr, _READERS))}; {WAY_OUT}")
    return _READERS[method](config)


def with_matrices(tensors: Mapping[str, Tensor], scheme: Scheme, origin: str) -> dict[str, Tensor]:
    """Return the checkpoint's tensors, and a matrix `MODULE.weight` for each quantised module.

    The module's own tensors are kept. origin: the checkpoint, for messages. Raises
    ModelFormatError for parts that are missing or inconsistent.
    """
    result = dict(tensors)
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        marks = [f"{module}.{mark}" for mark in scheme.marks]
        there = [mark for mark in marks if mark in tensors]
        if part == "weight" and tensor.dtype in _NEED_SCALES and not there:
            # `gather` refuses this tensor if the model has a matrix of that name.
            source = f"{tensor.source} without tensor {' or '.join(map(shown_name, marks))}"
            result[name] = replace(tensor, source=source)
        if name not in there[:1]:
            continue
        stored = scheme.matrix(Parts(module, tensors, origin))
        nothing = np.empty((stored.shape[0], 0), np.uint8)
        source = _numbers(module, tensors, tensor).source
        result[f"{module}.weight"] = Tensor(nothing, stored.format, source, stored=stored)
    return result


def _numbers(module: str, tensors: Mapping[str, Tensor], marking: Tensor) -> Tensor:
    """Return the tensor that has the matrix's numbers; messages about the matrix name it."""
    names = (f"{module}.{part}" for part in _NUMBERS)
    return next((tensors[name] for name in names if name in tensors), marking)
