"""Options of a batcher, how a request draws its tokens, and the form that its output has."""

from __future__ import annotations

from .sampling_params import MAX_LOGPROBS, OF_MODELS, SamplingParams, left_to_model
from .structured_output import JsonSchema, StructuredOutput, StructuredOutputKind, schema_text

__all__ = [
    "MAX_LOGPROBS",
    "OF_MODELS",
    "JsonSchema",
    "SamplingParams",
    "StructuredOutput",
    "StructuredOutputKind",
    "left_to_model",
    "schema_text",
]
