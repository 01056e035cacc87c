"""Options of a batcher, how a request draws its tokens, and the form that its output has."""

from __future__ import annotations

from .output_form import FormKind, JsonSchema, OutputForm, schema_text
from .sampling_params import MAX_LOGPROBS, OF_MODELS, SamplingParams, left_to_model

__all__ = [
    "MAX_LOGPROBS",
    "OF_MODELS",
    "FormKind",
    "JsonSchema",
    "OutputForm",
    "SamplingParams",
    "left_to_model",
    "schema_text",
]
