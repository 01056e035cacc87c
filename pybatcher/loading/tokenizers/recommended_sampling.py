"""Read how a model's files recommend to draw its tokens."""

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
"""The names in a file, by the fields of SamplingParams. Source: llama.cpp's gguf-py."""


def recommended_sampling(fields: Fields, names: Mapping[str, str]) -> dict[str, float]:
    """Return the values of fields of SamplingParams that a file has.

    names: what the fields are called there. A `top_k` of -1 is 0, all tokens. A value that no
        request may have is left out, with a warning.
    """
    found = {}
    for own, name in names.items():
        value = fields.get(name)
        if value is None:
            continue
        if own == "top_k" and type(value) is int and value == -1:
            value = 0
        try:
            found[own] = getattr(SamplingParams(**{own: value}), own)
        except InvalidRequestError as error:
            warnings.warn(f"{fields.source}: {name} is left out: {error}", stacklevel=2)
    return found
