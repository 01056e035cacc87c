"""Options of a batcher, sampling parameters of a request, and the structure of its output."""

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
