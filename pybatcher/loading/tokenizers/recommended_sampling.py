"""Read the sampling parameters that a model's files recommend."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from ...errors import InvalidRequestError
from ...params import OF_MODELS, SamplingParams
from ..checkpoints.fields import Fields

__all__ = ["IN_GENERATION_CONFIG", "IN_GGUF", "recommended_sampling"]

IN_GENERATION_CONFIG = {name: name for name in OF_MODELS}
IN_GGUF = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
"""Names in a file by field of SamplingParams; llama.cpp's gguf-py defines those of GGUF."""


def recommended_sampling(fields: Fields, names: Mapping[str, str]) -> dict[str, float]:
    """Return the recommended values, by field of SamplingParams.

    names: the names in the file, by field. A value that is out of range for a request is omitted,
        with a warning.
    """
    found = {}
    for own, name in names.items():
        value = fields.get(name)
        if value is None:
            continue
        try:
            found[own] = getattr(SamplingParams(**{own: value}), own)
        except InvalidRequestError as error:
            warnings.warn(f"{fields.source}: {name} is left out: {error}", stacklevel=2)
    return found
