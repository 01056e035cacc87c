"""Reads the sampling fields that all APIs share as options of the calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ...params import SamplingParams
from ...params.structured_output import STRUCTURED_OUTPUT_FIELDS
from .forms import read_forms
from .http_error import HttpError, bad

__all__ = [
    "ANY_LENGTH",
    "bad",
    "read_flag",
    "read_sampling",
    "read_streaming",
    "read_text",
    "refuse_token_ids",
    "renamed_fields",
    "unsupported",
]

ANY_LENGTH = 2**31 - 1
"""No limit below the last position of a sequence."""

_MOST_TOKENS = 2**14
_OTHERS = {"logprobs", "max_tokens", "of_model", *STRUCTURED_OUTPUT_FIELDS}
_OWN = frozenset(field.name for field in fields(SamplingParams)) - _OTHERS


def unsupported(param: str, advice: str) -> HttpError:
    """Return the error for a field that this server does not support."""
    message = f"{param} is not supported: {advice}"
    return HttpError(400, message, code="unsupported_parameter", param=param)


def refuse_token_ids(body: Mapping[str, Any]) -> None:
    """Raise HttpError for the field of vLLM that asks for token ids beside the text."""
    if read_flag(body, "return_token_ids", False):
        raise unsupported(
            "return_token_ids", "ask for logprobs with return_tokens_as_token_ids, or leave it out"
        )


def read_flag(body: Mapping[str, Any], name: str, default: bool, within: str = "") -> bool:
    """Return a value that must be true, false or null; null means the default. Raises HttpError.

    within: the prefix of the name in an error.
    """
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad(within + name, value, "true or false")
    return value


def read_text(value: object, where: str, *, may_be_empty: bool = True) -> str:
    """Return a text that UTF-8 can encode. Raises HttpError."""
    if not isinstance(value, str) or not (value or may_be_empty):
        raise bad(where, value, "a text" if may_be_empty else "a text that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise bad(where, value, "Unicode text, without halves of surrogate pairs") from None
    return value


def read_sampling(
    body: Mapping[str, Any], *, format_field: str = "response_format"
) -> dict[str, Any]:
    """Return the given sampling options of a body, and the options that every request has.

    Null is the same as a missing field. Only shapes that are specific to HTTP are checked here; the
    call checks everything else. format_field: the API's field for the form of the output.
    """
    options: dict[str, Any] = {}
    for name, value in body.items():
        if value is not None and (name in _OWN or name == "priority"):
            options[name] = value
    for name in ("logit_bias", "stop_token_ids"):
        if isinstance(given := options.get(name), (dict, list)) and len(given) > _MOST_TOKENS:
            message = f"{name} has {len(given)} token ids; it must have at most {_MOST_TOKENS}"
            raise HttpError(400, message, code="invalid_value", param=name)
    if "logit_bias" in options:
        options["logit_bias"] = _logit_bias(options["logit_bias"])
    forms, _ = read_forms(body, format_field=format_field)
    return options | forms


def renamed_fields(
    body: Mapping[str, Any], *, format_field: str = "response_format"
) -> dict[str, str]:
    """Return the fields of a body that have another name in the calls, by that name."""
    _, names = read_forms(body, format_field=format_field)
    return {option: name for option, name in names.items() if option != name}


def read_streaming(body: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """Return whether a body asks for a stream, for usage at its end, and for usage in each chunk.

    Raises HttpError.
    """
    options = body.get("stream_options")
    options = {} if options is None else options
    if not isinstance(options, dict):
        raise bad("stream_options", options, "a map")
    wants_usage = read_flag(options, "include_usage", False, "stream_options.")
    all_along = read_flag(options, "continuous_usage_stats", False, "stream_options.")
    return read_flag(body, "stream", False), wants_usage, wants_usage and all_along


def _logit_bias(value: object) -> dict[int, Any]:
    wanted = "a map of token ids to numbers"
    if not isinstance(value, dict):
        raise bad("logit_bias", value, wanted)
    biases = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise bad("logit_bias", key, wanted)
        biases[int(key)] = bias
    return biases
