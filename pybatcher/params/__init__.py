"""Options of a batcher, sampling parameters of a request, and the structure of its output."""

from __future__ import annotations

from .sampling_params import (
    CHAT_SAMPLING,
    MAX_LOGPROBS,
    OF_MODELS,
    SamplingParams,
    chat_sampling,
    left_to_model,
)
from .structured_output import JsonSchema, StructuredOutput, StructuredOutputKind, schema_text

__all__ = [
    "CHAT_SAMPLING",
    "MAX_LOGPROBS",
    "OF_MODELS",
    "JsonSchema",
    "SamplingParams",
    "StructuredOutput",
    "StructuredOutputKind",
    "chat_sampling",
    "left_to_model",
    "schema_text",
]
