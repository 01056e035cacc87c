"""Reads the fields of a body that ask for a form of the output, and refuses unknown ones. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ...params.structured_output import STRUCTURED_OUTPUT_FIELDS
from .http_error import HttpError, bad

__all__ = ["SCHEMA_FIELD", "read_forms", "refuse_unknown_forms"]

SCHEMA_FIELD = "response_format.json_schema.schema"

_GUIDED = {  # of vLLM
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choices",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
}
_STRUCTURED = {  # the fields of vLLM's `structured_outputs`
    "json": "json_schema",
    "regex": "regex",
    "choice": "choices",
    "grammar": "grammar",
    "json_object": "json_object",
}
# Fields without a form: of the layout, which is always that of `json.dumps`, and of the backend.
_STRUCTURED_OPTIONS = ("disable_any_whitespace", "disable_fallback", "whitespace_pattern")
_OPTIONS = frozenset(
    {"guideddecodingbackend", "guidedwhitespacepattern", "grammarlazy", "whitespacepattern"}
)

# Names of forms in other products, without separators and in lower case.
_FORM = re.compile(
    "guided|structuredoutput|structuredecoding|structuraltag|jsonschema|jsonobject|jsonmode|"
    "jsonformat|grammar|regex|(?:answer|output|response|return)(?:format|model|"
    "mimetype|schema|structure)"
)
_FORM_NAMES = frozenset(
    {"bnf", "choice", "choices", "ebnf", "format", "gbnf", "json", "lark", "schema"}
)
# Fields of other products that contain such fields.
_WHOLES = frozenset(
    {
        "constraints",
        "extrabody",
        "generationconfig",
        "nvext",
        "options",
        "output",
        "outputconfig",
        "parameters",
        "samplingparams",
        "text",
    }
)
_NO_FORM = frozenset({"auto", "message", "none", "plain", "text", "text/plain", "markdown"})


def read_forms(
    body: Mapping[str, Any], *, format_field: str = "response_format"
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options of structured output, and the request's fields by the name of the option.

    format_field: the field in which this API has the format; it is read here if it is
        `response_format`. Raises HttpError for two forms, and for a form that is not supported.
    """
    options: dict[str, Any] = {}
    names: dict[str, str] = {}
    for option, value, name in _forms(body, format_field):
        if value is None or (value is False and option == "json_object"):
            continue
        if option in options:
            raise bad(
                name, value, f"left out, because {names[option]} has a form of the output already"
            )
        options[option], names[option] = value, name
    known = {*_GUIDED, *STRUCTURED_OUTPUT_FIELDS, "structured_outputs", "format", format_field}
    whole, _, _ = format_field.partition(".")
    refuse_unknown_forms(body, {*known, whole}, format_field)
    return options, names


def refuse_unknown_forms(body: Mapping[str, Any], known: Collection[str], way_out: str) -> None:
    """Raise HttpError if a field asks for a form of the output, and is none of those of this API.

    Ignored, it would give a text without the form. known: the fields that this API reads. way_out:
    the field to use instead.
    """
    for name, value in body.items():
        if name in known or not _asks(value):
            continue
        plain = _plain(name)
        where = name
        is_form = _is_form(plain, value)
        if plain in _WHOLES and isinstance(value, dict):
            inner = [key for key, one in value.items() if _asks(one) and _is_form(_plain(key), one)]
            is_form, where = bool(inner), ".".join([name, *inner[:1]])
        if is_form:
            raise HttpError(
                400,
                f"{where} asks for a form of the output, under a name that this API does not "
                f"have; use {way_out}, or leave {where} out",
                code="unsupported_parameter",
                param=where,
            )


def _is_form(plain: str, value: object) -> bool:
    if plain in _OPTIONS or (isinstance(value, str) and value.lower() in _NO_FORM):
        return False
    if isinstance(value, dict) and value.get("type") == "text":
        return False
    return plain in _FORM_NAMES or _FORM.search(plain) is not None


def _asks(value: object) -> bool:
    return value is not None and value is not False and value not in ("", [], {})


def _plain(name: str) -> str:
    return re.sub("[^a-z]", "", name.lower())


def _forms(body: Mapping[str, Any], format_field: str) -> Iterator[tuple[str, Any, str]]:
    """Yield the forms of a body: option, value, and the name of the field."""
    for own in STRUCTURED_OUTPUT_FIELDS:
        yield own, body.get(own), own
    for name, option in _GUIDED.items():
        yield option, body.get(name), name
    yield from _structured_outputs(body.get("structured_outputs"))
    given = body.get("format")  # of Ollama
    if given == "json":
        yield "json_object", True, "format"
    elif _asks(given) and given != "text":
        if not isinstance(given, dict):
            raise bad("format", given, "'json' or a JSON schema")
        yield "json_schema", given, "format"
    if format_field == "response_format" and body.get("response_format") is not None:
        yield from _response_format(body["response_format"])


def _structured_outputs(given: object) -> Iterator[tuple[str, Any, str]]:
    if given is None or given is False:
        return
    wanted = f"a map with one of {', '.join(_STRUCTURED)}"
    if not isinstance(given, dict):
        raise bad("structured_outputs", given, wanted)
    for name, value in given.items():
        where = f"structured_outputs.{name}"
        if value is None or value is False or name in _STRUCTURED_OPTIONS:
            continue
        if name not in _STRUCTURED:
            raise bad(where, value, f"left out: structured_outputs must be {wanted}")
        yield _STRUCTURED[name], value, where


def _response_format(value: object) -> Iterator[tuple[str, Any, str]]:
    wanted = "{'type': 'text' | 'json_object' | 'json_schema', ...}"
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in ("text", "json_object", "json_schema"):
        raise bad("response_format", value, wanted)
    if kind == "json_object":
        given = {key: value[key] for key in ("schema", "json_schema") if value.get(key) is not None}
        for key, schema in given.items():  # of llama.cpp and Together, and of Cohere
            where = f"response_format.{key}"
            if not isinstance(schema, dict):
                raise bad(where, schema, "a JSON schema")
            yield "json_schema", schema, where
        if not given:
            yield "json_object", True, "response_format"
    elif kind == "json_schema":
        described = value.get("json_schema", value)
        schema = described.get("schema") if isinstance(described, dict) else None
        if not isinstance(schema, dict):
            raise bad(SCHEMA_FIELD, schema, "a JSON schema")
        yield "json_schema", schema, SCHEMA_FIELD
