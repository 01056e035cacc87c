"""`with_structured_output`: sets the parser of a reply whose output has a structure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..params import JsonSchema, SamplingParams, schema_text
from .call import Call
from .reply import Reply

__all__ = ["with_structured_output"]


def with_structured_output(call: Call, reply: Reply) -> Call:
    """Return the call with a schema in place of a type, and set the `parse` of its reply.

    Raises InvalidRequestError for an invalid schema. The service makes all other checks.
    """
    given = call.sampling.get("json_schema")
    if given is not None:
        call = replace(call, sampling={**call.sampling, "json_schema": schema_text(given)})
    # other types may raise when they are tested
    if type(call.output) in (tuple, list) and not call.output:
        reply.parse = _parse(call)
    return call


def _parse(call: Call) -> Callable[[str], object] | None:
    def field(name: str) -> Any:
        params: Any = call.params if issubclass(type(call.params), SamplingParams) else None
        return call.sampling.get(name, getattr(params, name, None))

    schema = field("json_schema")
    if isinstance(schema, JsonSchema):
        return _value if schema.adapter is None else _typed(schema.adapter)
    if field("json_object") is True:
        return _value
    return str if field("choices") is not None else None


def _value(text: str) -> object:
    """Return the value of a JSON text; None for a text that was cut or is nested too deeply."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def _typed(adapter: Any) -> Callable[[str], object]:
    def parse(text: str) -> object:
        return None if _value(text) is None else adapter.validate_json(text)

    return parse
