"""Fields about drawing that requests of all APIs have, as keywords of the calls. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..errors.checks import short
from ..params import SamplingParams
from .http_error import HttpError

__all__ = ["ANY_LENGTH", "bad", "read_sampling", "read_streaming"]

ANY_LENGTH = 2**31 - 1
"""Up to the last position of a sequence."""

_OWN = frozenset(field.name for field in fields(SamplingParams)) - {"logprobs", "max_tokens"}
_RENAMED = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choices",
    "guided_grammar": "grammar",
}


def bad(param: str, value: object, wanted: str) -> HttpError:
    """Return the error for a value that is not `wanted`."""
    message = f"{param} is {short(value)}; it must be {wanted}"
    return HttpError(400, message, code="invalid_value", param=param)


def read_sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of sampling that a body has, and those of every request.

    Null is as if nothing were said. Temperature is 1 where nothing is said, as OpenAI has it.
    Checked are the shapes that only HTTP has; all else is checked by the call.
    """
    options: dict[str, Any] = {"temperature": 1.0}
    for name, value in body.items():
        name = _RENAMED.get(name, name)
        if value is not None and (name in _OWN or name == "priority"):
            options[name] = value
    if "logit_bias" in options:
        options["logit_bias"] = _logit_bias(options["logit_bias"])
    if body.get("response_format") is not None:
        options |= _response_format(body["response_format"])
    return options


def read_streaming(body: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """Return whether a body asks for a stream, for the counts at its end, and for them all along.

    Raises HttpError.
    """
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise bad("stream_options", options, "a map")
    wants_usage = options.get("include_usage") is True
    all_along = wants_usage and options.get("continuous_usage_stats") is True
    return body.get("stream") is True, wants_usage, all_along


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


def _response_format(value: object) -> dict[str, Any]:
    wanted = "{'type': 'text' | 'json_object' | 'json_schema', ...}"
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    if kind == "json_schema" and isinstance(value, dict):
        described = value.get("json_schema", value)
        schema = described.get("schema") if isinstance(described, dict) else None
        if not isinstance(schema, dict):
            raise bad("response_format.json_schema.schema", schema, "a JSON schema")
        return {"json_schema": schema}
    raise bad("response_format", value, wanted)
