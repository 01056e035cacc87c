"""`usable_schema`: a schema that llguidance compiles, or the keyword for which it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ...errors import InvalidRequestError
from .idle_keywords import UNENFORCED
from .schemas import strict_schema, subschemas

__all__ = ["refusal_of_schema", "usable_schema"]

_ANY_OBJECT = '{"type": "object"}'
_MOST_TRIED = 2**16  # characters of a schema that is compiled here, within the caller's thread
_MOST_LEFT_OUT = 64  # keywords
_MOST_REASON = 200  # characters

# The keyword in an error of llguidance, or in a group of its pattern.
_ERRORS = [
    (re.compile(r"oneOf constraints"), "oneOf"),
    (re.compile(r"patternProperty regexes|NoExtension"), "patternProperties"),
    (re.compile(r"for '(\w+)'"), ""),
    (re.compile(r"^(\$?\w+) must be"), ""),
    (re.compile(r"Invalid type"), "type"),
    (re.compile(r"multiple of"), "multipleOf"),
    (re.compile(r"Unknown format"), "format"),
    (re.compile(r"min/maxProperties"), "minProperties"),
    (re.compile(r"min/maxProperties"), "maxProperties"),
    (re.compile(r"Invalid URI reference"), "$id"),
    (re.compile(r"Pointer|Resource|Anchor|retriev|URI"), "$ref"),
    (re.compile(r"regex|lookaround|look-around"), "pattern"),
    (re.compile(r"regex|lookaround|look-around"), "patternProperties"),
    (re.compile(r"required property"), "required"),
    (re.compile(r"(\w+) \("), ""),
    (re.compile(r"(anyOf|oneOf) is empty"), ""),
]

_KINDS: dict[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool}
_ONE_SCHEMA = frozenset({"additionalItems", "additionalProperties", "items"})
_SEVERAL_SCHEMAS = frozenset(
    {"allOf", "anyOf", "oneOf", "patternProperties", "prefixItems", "properties"}
)

# These decide how long a schema compiles, and not whether llguidance knows its keywords.
_LENGTHS = ("maxItems", "maxLength", "minItems", "minLength")


@lru_cache(512)
def usable_schema(text: str, *, loose: bool = False) -> str:
    """Return the text of a schema from `strict_schema` that llguidance compiles.

    loose: leave out what llguidance cannot enforce, and in the end the whole schema. Otherwise,
    raises InvalidRequestError with the keyword and its place. A schema of more than `_MOST_TRIED`
    characters is only rewritten, because to compile it may take long. Takes milliseconds.
    """
    if loose:
        return _loosened(text)
    strict = strict_schema(text)
    if (said := _error_of(strict)) is not None:
        raise refusal_of_schema(text, said)
    return strict


def _loosened(text: str) -> str:
    for _ in range(_MOST_LEFT_OUT):
        try:
            strict = strict_schema(text, loose=True)
        except InvalidRequestError:  # nested too deeply
            break
        if (said := _error_of(strict)) is None:
            return strict
        root = json.loads(text)
        schema, key, place = _culprit(root, said)
        if schema is None or (key == "type" and not place):
            break
        value = schema.pop(key)
        if key == "oneOf" and isinstance(value, list) and "anyOf" not in schema:
            schema["anyOf"] = value
        text = json.dumps(root, ensure_ascii=False)
    return _ANY_OBJECT


def refusal_of_schema(text: str, said: str) -> InvalidRequestError:
    """Return the error for a schema that llguidance refuses. said: the error of llguidance."""
    schema, key, place = _culprit(json.loads(text), said)
    reason = " ".join(said.split())
    if len(reason) > _MOST_REASON:
        reason = f"{reason[:_MOST_REASON]}..."
    if schema is None:
        message = f"json_schema cannot be enforced: {reason}; make it simpler"
    else:
        message = (
            f"json_schema{place} has {key}, which cannot be enforced ({reason}); leave {key} out, "
            "or say it otherwise"
        )
    return InvalidRequestError(message, field="json_schema")


def _error_of(strict: str) -> str | None:
    """Return the error of llguidance for a schema from `strict_schema`; None: there is none."""
    try:
        from llguidance import LLMatcher, LLTokenizer
    except ImportError:  # the compiler of the whole form says so
        return None
    if len(strict) > _MOST_TRIED:
        return None
    root = json.loads(strict)
    for schema, _ in _schemas(root):
        for key in _LENGTHS:
            if isinstance(schema.get(key), int) and schema[key] > 99:
                del schema[key]
    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(root))
        made = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
    except ValueError as error:
        return str(error)
    return str(made.get_error()).strip() if made.is_error() else None


def _culprit(root: Any, said: str) -> tuple[dict[str, Any] | None, str, str]:
    """Return the schema that an error is about, its keyword and its place; None: not known."""
    listed = re.search(r"Unimplemented keys: (\[.*?\])", said)
    if listed is not None:
        keys = [key for key in json.loads(listed[1]) if key in UNENFORCED]
        candidates = [(one, place) for one, place in _schemas(root) if one.keys() >= {*keys}]
        if keys and candidates:
            return (candidates[0][0], keys[0], candidates[0][1])
        return None, "", ""
    if said.startswith("schema must be"):
        for schema, place in _schemas(root):
            if (key := _wrong_part(schema)) is not None:
                return schema, key, place
    for pattern, key in _ERRORS:
        found = pattern.search(said)
        if found is None:
            continue
        key = key or found[1]
        candidates = [(one, place) for one, place in _schemas(root) if key in one]
        wanted = tuple(kind for word, kind in _KINDS.items() if word in said)
        if wanted and "must be" in said:
            candidates = [one for one in candidates if not isinstance(one[0][key], wanted)]
        # the value is often a part of the message
        candidates.sort(key=lambda candidate: not _is_told(candidate[0][key], said))
        if candidates:
            return (candidates[0][0], key, candidates[0][1])
    return None, "", ""


def _wrong_part(schema: dict[str, Any]) -> str | None:
    """Return a keyword whose value must be a schema, or a map or list of schemas, and is none."""
    for key in _ONE_SCHEMA & schema.keys():
        if not isinstance(schema[key], (dict, bool, list)):
            return key
    for key in _SEVERAL_SCHEMAS & schema.keys():
        value = schema[key]
        parts = value.values() if isinstance(value, dict) else value
        if isinstance(value, (dict, list)) and not all(isinstance(p, (dict, bool)) for p in parts):
            return key
    return None


def _is_told(value: Any, said: str) -> bool:
    texts = value if isinstance(value, dict) else [value]
    return all(str(one).lstrip("#") in said for one in texts)


def _schemas(root: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield all schemas with their places: those of definitions last, as these may be unused."""
    first: list[tuple[Any, str]] = [(root, "")]
    last: list[tuple[Any, str]] = []
    while first or last:
        schema, place = first.pop(0) if first else last.pop(0)
        if isinstance(schema, dict):
            yield schema, place
            for one, where in subschemas(schema, place):
                is_defined = where.startswith((".$defs.", ".definitions."))
                (last if is_defined else first).append((one, where))
