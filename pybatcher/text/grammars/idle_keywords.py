"""`remove_idle`: removes keywords of a JSON schema that constrain nothing, or replaces them.

Schemas of real clients have them (`propertyNames: {"type": "string"}`, `uniqueItems: false`,
formats that are annotations), and llguidance refuses them.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

__all__ = ["ANNOTATIONS", "FORMATS", "UNENFORCED", "remove_idle"]

Schema = dict[str, Any]

UNENFORCED = frozenset(
    [
        "$dynamicRef",
        "$recursiveRef",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    ]
)
"""Keywords that llguidance refuses."""

ANNOTATIONS = frozenset(
    [
        "$comment",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "externalDocs",
        "nullable",
        "readOnly",
        "title",
        "writeOnly",
        "xml",
    ]
)
"""Keywords without any constraint, by JSON Schema and OpenAPI, beside all that begin with `x-`."""

FORMATS = frozenset(
    [
        "date",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "time",
        "unknown",
        "uri",
        "uuid",
    ]
)
"""The formats that are enforced. Others are annotations."""

_MAY_BE_NULL = frozenset({"const", "default", "example"})
_COUNTS = frozenset(
    [
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
    ]
)
_ARRAY = frozenset(["contains", "maxContains", "minContains", "unevaluatedItems", "uniqueItems"])
_OBJECT = frozenset(
    [
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "propertyNames",
        "unevaluatedProperties",
    ]
)
_APPLICATORS = frozenset(
    [
        "$dynamicRef",
        "$recursiveRef",
        "$ref",
        "allOf",
        "anyOf",
        "dependencies",
        "dependentSchemas",
        "else",
        "if",
        "not",
        "oneOf",
        "then",
    ]
)
_OF_OTHER_TYPES = frozenset(  # than texts
    [
        "additionalItems",
        "additionalProperties",
        "contains",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "items",
        "maxContains",
        "maxItems",
        "maxProperties",
        "maximum",
        "minContains",
        "minItems",
        "minProperties",
        "minimum",
        "multipleOf",
        "patternProperties",
        "prefixItems",
        "properties",
        "required",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    ]
)
_ALL_NAMES = frozenset({"", ".*", "^.*", ".*$", "^.*$", "^", "$"})
_MOST_COPIED = 2**18  # characters
_DEEP = 16

_DRAFT = re.compile(r"draft-0?([4-7])|draft/(20\d\d-\d\d)")
_NO_URI = re.compile(r"[\s<>\"{}|\\^`]")
_DRAFTS = {"5": "4"}  # draft 5 has the meta-schema of draft 4


def remove_idle(schema: Schema, root: Schema, text: str) -> None:
    """Change one schema in place, and none of those within it. Its instances stay the same.

    An exception are names with a condition, which become a list of names or a pattern: then no
    names are allowed whose schema is unclear.

    root: the schema that references point into. text: its JSON.
    """
    for key in [key for key, one in schema.items() if one is None and key not in _MAY_BE_NULL]:
        del schema[key]
    for key in _COUNTS & schema.keys():
        if isinstance(schema[key], float) and schema[key].is_integer():
            schema[key] = int(schema[key])
    _identity(schema, text)
    form, kinds = schema.get("format"), schema.get("type")
    if isinstance(form, str) and form not in FORMATS:
        del schema["format"]
    if kinds == "any" or (isinstance(kinds, list) and "any" in kinds):  # of draft 3
        del schema["type"]
    if schema.get("required") is False:
        del schema["required"]
    for key in ("additionalProperties", "items", "additionalItems"):
        if key in schema and _never(schema[key]):
            schema[key] = False
    _by_type(schema)
    _conditions(schema)
    _items(schema)
    _dependencies(schema)
    _unevaluated(schema)
    _names(schema, root)


def _identity(schema: Schema, text: str) -> None:
    """Change the names of meta-schemas that llguidance does not know, and of anchors."""
    meta, own_id = schema.get("$schema"), schema.get("$id")
    if "$schema" in schema and "draft-03" not in str(meta):
        found = _DRAFT.search(str(meta))
        if found is None:
            del schema["$schema"]
        elif found[1]:
            draft = _DRAFTS.get(found[1], found[1])
            schema["$schema"] = f"http://json-schema.org/draft-0{draft}/schema#"
        else:
            known = "2019-09" if found[2] == "2019-09" else "2020-12"
            schema["$schema"] = f"https://json-schema.org/draft/{known}/schema"
    if isinstance(own_id, str) and (own_id.startswith("#") or _NO_URI.search(own_id)):
        is_named = text.count(json.dumps(own_id, ensure_ascii=False)) > 1
        if not is_named:
            del schema["$id"]
    anchor = schema.pop("$dynamicAnchor", None)
    if isinstance(anchor, str):
        schema.setdefault("$anchor", anchor)
    if schema.get("$recursiveRef") == "#" and text.count('"$id"') <= 1:
        schema.setdefault("$ref", "#")
        del schema["$recursiveRef"]
    schema.pop("$recursiveAnchor", None)


def _by_type(schema: Schema) -> None:
    """Remove keywords of arrays and objects where the type is neither."""
    kinds = schema.get("type")
    if isinstance(kinds, str):
        kinds = [kinds]
    if not isinstance(kinds, list) or not kinds:
        return
    for kind, keys in (("array", _ARRAY), ("object", _OBJECT)):
        if kind not in kinds:
            for key in keys & schema.keys():
                del schema[key]


def _conditions(schema: Schema) -> None:
    if _never(schema.get("not", True)):
        del schema["not"]
    elif "not" in schema and _always(schema["not"]):
        schema.clear()
        schema["anyOf"] = []  # there is no instance
    condition = schema.get("if")
    for key, decided in (("then", _always), ("else", _never)):
        if key in schema and ("if" not in schema or _always(schema[key])):
            del schema[key]
        elif key in schema and decided(condition):
            schema["allOf"] = [*_list(schema, "allOf"), schema.pop(key)]
    if "then" in schema and _never(condition):
        del schema["then"]
    if "else" in schema and _always(condition):
        del schema["else"]
    if "then" not in schema and "else" not in schema:
        schema.pop("if", None)


def _items(schema: Schema) -> None:
    most = schema.get("maxItems")
    if schema.get("uniqueItems") is False or (_is_count(most) and most < 2):
        schema.pop("uniqueItems", None)
    if "contains" not in schema:
        schema.pop("minContains", None)
        schema.pop("maxContains", None)
        return
    low, high = schema.get("minContains", 1), schema.get("maxContains")
    if not _is_count(low) or not (high is None or _is_count(high)):
        return
    if _always(schema["contains"]):  # then these count all items
        schema["minItems"] = max(low, schema.get("minItems", 0))
        if high is not None:
            schema["maxItems"] = min(high, schema.get("maxItems", high))
    elif low or high is not None:
        return
    for key in ("contains", "minContains", "maxContains"):
        schema.pop(key, None)


def _dependencies(schema: Schema) -> None:
    required = set(_list(schema, "required"))
    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        given = schema.get(key)
        if isinstance(given, dict) and all(
            set(map(str, one)) <= required if isinstance(one, list) else _always(one)
            for one in given.values()
        ):
            del schema[key]


def _unevaluated(schema: Schema) -> None:
    """Without applicators, all that is not evaluated is what is not listed."""
    for key, beyond in (("unevaluatedProperties", "properties"), ("unevaluatedItems", "items")):
        if key in schema and _always(schema[key]):
            del schema[key]
        if key not in schema or schema.keys() & _APPLICATORS or "contains" in schema:
            continue
        left = schema.pop(key)
        if beyond == "properties":
            schema.setdefault("additionalProperties", left)
        elif isinstance(schema.get("items"), list):
            schema.setdefault("additionalItems", left)
        else:
            schema.setdefault("items", left)


def _names(schema: Schema, root: Schema) -> None:
    """Remove counts of names that always hold, and conditions of names."""
    listed, least = schema.get("properties", {}), schema.get("minProperties")
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    if _is_count(least) and least <= len(set(map(str, _list(schema, "required")))):
        del schema["minProperties"]
    most = schema.get("maxProperties")
    if _is_count(most) and closed and isinstance(listed, dict) and len(listed) <= most:
        del schema["maxProperties"]
    if "propertyNames" not in schema:
        return
    condition = schema["propertyNames"]
    if _allows_names(condition, root, 0) or (closed and not listed):
        del schema["propertyNames"]
        return
    condition = _resolved(condition, root)
    if not isinstance(condition, Mapping) or schema.get("patternProperties"):
        return
    rest = {
        key: one
        for key, one in condition.items()
        if not (_is_annotation(key) or key == "type" or (key == "format" and one not in FORMATS))
    }
    others = schema.get("additionalProperties", True)
    names = [rest["const"]] if rest.keys() == {"const"} else rest.get("enum")
    if rest.keys() in ({"enum"}, {"const"}) and isinstance(names, list):
        if isinstance(listed, dict) and len(names) * len(json.dumps(others)) <= _MOST_COPIED:
            schema["properties"] = {
                one: listed[one] if one in listed else copy.deepcopy(others)
                for one in names
                if isinstance(one, str)
            }
            schema["additionalProperties"] = False
            del schema["propertyNames"]
    elif not listed and (pattern := _pattern(rest)) is not None:
        schema["patternProperties"] = {pattern: others}
        schema["additionalProperties"] = False
        del schema["propertyNames"]


def _pattern(condition: Mapping[str, Any]) -> str | None:
    """Return the pattern of names that a condition allows; None for other conditions."""
    if condition.keys() == {"pattern"} and isinstance(condition["pattern"], str):
        return condition["pattern"]
    low, high = condition.get("minLength", 0), condition.get("maxLength", "")
    are_counts = _is_count(low) and (high == "" or _is_count(high))
    if condition.keys() <= {"minLength", "maxLength"} and are_counts:
        return f"^[\\s\\S]{{{low},{high}}}$"
    return None


def _allows_names(condition: object, root: Schema, depth: int) -> bool:
    """Return whether every text is an instance."""
    if condition is True:
        return True
    if not isinstance(condition, Mapping) or depth > _DEEP:
        return False
    return all(_allows_names_by(key, one, root, depth) for key, one in condition.items())


def _allows_names_by(key: str, value: Any, root: Schema, depth: int) -> bool:
    if _is_annotation(key) or key in _OF_OTHER_TYPES or value is None:
        return True
    match key:
        case "type":
            return value in ("string", "any") or (isinstance(value, list) and "string" in value)
        case "format":
            return value not in FORMATS
        case "minLength":
            return bool(value == 0)
        case "pattern":
            return value in _ALL_NAMES
        case "not":
            return _never(value)
        case "$ref":
            return _allows_names(_resolved({key: value}, root), root, depth + 1)
        case "allOf":
            return all(_allows_names(one, root, depth + 1) for one in value)
        case "anyOf":
            return any(_allows_names(one, root, depth + 1) for one in value)
    return False


def _resolved(schema: Any, root: Schema) -> Any:
    """Return the target of a lone reference into the root; any other schema unchanged."""
    for _ in range(_DEEP):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        schema = root
        for part in reference.removeprefix("#/").split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return None


def _always(schema: object) -> bool:
    """Return whether everything is an instance, by a look at the schema itself."""
    if isinstance(schema, Mapping):
        rest = {key: one for key, one in schema.items() if not _is_annotation(key)}
        return not rest or (rest.keys() == {"not"} and _never(rest["not"]))
    return schema is True


def _never(schema: object) -> bool:
    """Return whether nothing is an instance, by a look at the schema itself."""
    if isinstance(schema, Mapping):
        rest = {key: one for key, one in schema.items() if not _is_annotation(key)}
        return rest.keys() == {"not"} and _always(rest["not"])
    return schema is False


def _is_annotation(key: str) -> bool:
    return key in ANNOTATIONS or key.startswith("x-")


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _list(schema: Schema, key: str) -> list[Any]:
    value = schema.get(key, [])
    return value if isinstance(value, list) else []
