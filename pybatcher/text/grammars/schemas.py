"""`strict_schema`: rewrites a JSON schema so that llguidance enforces all of it.

By itself llguidance (1.9) allows some instances that their schema forbids. Such schemas are
rewritten here, with the same instances or fewer, or refused.
"""

from __future__ import annotations

import decimal
import json
import math
import re
from typing import Any, TypeGuard

from ...errors import InvalidRequestError
from ...errors.checks import short
from .idle_keywords import ANNOTATIONS, UNENFORCED, remove_idle
from .patterns import Reading, translated

__all__ = ["strict_schema", "subschemas"]

# Keywords whose values are maps of schemas by name, and keywords whose values are no schemas.
_MAPS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_VALUES = frozenset({"const", "enum", "required"})

_DRAFTS_OF_LONE_REFS = re.compile("draft-0[467]")
_BESIDE_REF = frozenset({"$ref", "$schema", "$id", "id", "$defs", "definitions"})

# Control characters without a letter escape in JSON.
_UNWRITTEN = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")

# The digits that llguidance reads exactly in numbers that are no integers.
_DIGITS = 15
_SMALL = 1e-20  # replaces the next number to 0, which has 324 digits
_LARGE = 10**12  # larger numbers have fewer digits than that after the point

# Not in llguidance's formats: 29 February of years without it, the year 0, which Python lacks, and
# leap seconds, which few readers accept.
_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_DAY = (
    f"(?:{_YEAR}-(?:0[13-9]|1[0-2])-|{_YEAR}-02-(?:[01]|2[0-8])|"
    f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
)
_FORMATS = {
    "date": f"^{_DAY}",
    "time": "^[0-9]{2}:[0-9]{2}:[0-5]",
    "date-time": f"^{_DAY}[0-9]{{0,2}}[Tt ][0-9]{{2}}:[0-9]{{2}}:[0-5]",
}


def strict_schema(text: str, *, loose: bool = False) -> str:
    """Return the text of a schema whose instances are all instances of the given one.

    loose: leave out keywords that llguidance cannot enforce. Otherwise, raises InvalidRequestError
    with the keyword and its place.
    """
    try:
        root = json.loads(text)
        root.pop("x-guidance", None)  # it may switch off checked features
        draft = str(root.get("$schema", "")) if "oneOf" in text else ""
        schemas: list[tuple[Any, str]] = [(root, "")]
        while schemas:
            schema, place = schemas.pop()
            if isinstance(schema, dict):
                remove_idle(schema, root, text)
                _take_away(schema, draft)
                _enforce(schema, place, loose)
                schemas += subschemas(schema, place)
        return json.dumps(root, ensure_ascii=False)
    except RecursionError:
        raise InvalidRequestError(
            "json_schema is nested too deeply; make it simpler", field="json_schema"
        ) from None


def _enforce(schema: dict[str, Any], place: str, loose: bool) -> None:
    """Rewrite a schema so that llguidance enforces it, or leave out its keywords that cannot be."""
    if loose:
        for key in UNENFORCED & schema.keys():
            del schema[key]
    while True:
        made = dict(schema)
        try:
            _make_strict(made)
        except _RefusedError as refused:
            if not loose or refused.key not in schema:
                raise InvalidRequestError(
                    f"json_schema{place} {refused}", field="json_schema"
                ) from None
            del schema[refused.key]
        else:
            schema.clear()
            schema.update(made)
            return


class _RefusedError(Exception):
    """A keyword cannot be enforced. The message continues "json_schema ..."."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def _take_away(schema: dict[str, Any], draft: str) -> None:
    """Remove keywords without effect in a draft: beside a `$ref` up to draft 7, and `const` in 4.

    llguidance applies them, so there are fewer instances. That is allowed, except in `oneOf`: an
    instance of one of two alternatives by llguidance may be one of both. draft: "" without a
    `oneOf`.
    """
    if _DRAFTS_OF_LONE_REFS.search(draft) and isinstance(schema.get("$ref"), str):
        for key in schema.keys() - _BESIDE_REF:
            del schema[key]
    if "draft-04" in draft:
        schema.pop("const", None)


def subschemas(schema: dict[str, Any], place: str) -> list[tuple[Any, str]]:
    """Return the schemas directly in a schema, and the place of each.

    place: that of the schema, such as ".properties.a"; "" for the whole.
    """
    found: list[tuple[Any, str]] = []
    for key, value in schema.items():
        where = f"{place}.{key}"
        if key in _VALUES or key in ANNOTATIONS or key.startswith("x-"):
            continue
        if isinstance(value, list):
            found += [(one, f"{where}[{i}]") for i, one in enumerate(value)]
        elif isinstance(value, dict) and key in _MAPS:
            found += [(one, f"{where}.{name}") for name, one in value.items()]
        elif isinstance(value, dict):
            found.append((value, where))
    return found


def _make_strict(schema: dict[str, Any]) -> None:
    if "draft-03" in str(schema.get("$schema", "")):
        raise _refused("$schema", schema["$schema"], "give a schema of draft 4 or newer")
    for key in ("const", "enum"):
        if key in schema:
            _check_values(key, schema[key])
    _bound(schema, "minimum", "exclusiveMinimum", math.inf)
    _bound(schema, "maximum", "exclusiveMaximum", -math.inf)
    _order_items(schema)
    _check_names(schema)
    _read_patterns(schema)


def _check_values(key: str, value: Any) -> None:
    """Refuse integers that llguidance would round, and characters that it would leave out."""
    values = [value]
    while values:
        one = values.pop()
        if isinstance(one, dict):
            values += one.values()
        elif isinstance(one, list):
            values += one
        elif isinstance(one, int) and not _is_exact(one):
            raise _refused(key, one, "give integers of at most 53 bits, or texts")
        elif isinstance(one, float) and not _is_short(one):
            raise _refused(key, one, f"give numbers of at most {_DIGITS} digits, or texts")
        elif isinstance(one, str) and _UNWRITTEN.search(one):
            raise _refused(key, one, "give texts without control characters")


def _is_exact(number: int) -> bool:
    try:
        return int(float(number)) == number
    except OverflowError:
        return False


def _bound(schema: dict[str, Any], key: str, exclusive: str, inwards: float) -> None:
    """Merge an inclusive and an exclusive bound into one inclusive bound.

    llguidance allows 0 for numbers that must be more than 0 and less than 0.5.
    """
    given, beyond = schema.get(key), schema.get(exclusive)
    bounds = [_float(key, given, inwards)] if _is_number(given) else []
    if isinstance(beyond, bool):  # the boolean of draft 4
        beyond = given if beyond else None
        del schema[exclusive]
    if _is_number(beyond):
        schema.pop(exclusive, None)
        bounds.append(_float(exclusive, beyond, inwards, strictly=True))
    if bounds:
        schema[key] = max(bounds) if inwards > 0 else min(bounds)


def _float(key: str, bound: float, inwards: float, *, strictly: bool = False) -> float:
    """Return the next number inside a bound that llguidance reads exactly."""
    context = decimal.Context(
        prec=_DIGITS - 1, rounding=decimal.ROUND_CEILING if inwards > 0 else decimal.ROUND_FLOOR
    )
    if isinstance(bound, int) or bound.is_integer():
        whole = int(bound)
        if not strictly:
            return _whole(key, whole, inwards)
        if not whole:
            return math.copysign(_SMALL, inwards)
        if abs(whole) > _LARGE:
            return _whole(key, whole + (1 if inwards > 0 else -1), inwards)
    exact = decimal.Decimal(repr(bound))
    if strictly:
        return float(context.next_plus(exact) if inwards > 0 else context.next_minus(exact))
    return bound if _is_short(bound) else float(context.plus(exact))


def _whole(key: str, bound: int, inwards: float) -> int:
    try:
        rounded = float(bound)
        if rounded < bound if inwards > 0 else rounded > bound:
            rounded = math.nextafter(rounded, inwards)
        return int(rounded)
    except OverflowError:
        raise _refused(key, bound, "give one that a float can hold") from None


def _is_short(number: float) -> bool:
    """Return whether a number has so few digits that llguidance reads it exactly."""
    _, digits, exponent = decimal.Decimal(repr(number)).as_tuple()
    return len(digits) <= _DIGITS and isinstance(exponent, int) and abs(exponent) <= 22


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _order_items(schema: dict[str, Any]) -> None:
    """Drop an `additionalItems` without meaning, or put it beside its list of items.

    With it llguidance ignores `prefixItems`, and without a list of items beside it llguidance
    ignores it.
    """
    if "additionalItems" not in schema:
        return
    additional = schema.pop("additionalItems")
    if isinstance(schema.get("items"), list):
        schema["items"] = schema.pop("items")
        schema["additionalItems"] = additional


def _check_names(schema: dict[str, Any]) -> None:
    """Refuse to count names if one may come twice, which applies to names that are not listed."""
    least, required = schema.get("minProperties", 0), schema.get("required", ())
    if not _is_number(least) or not isinstance(required, list | tuple):
        return
    if least - len(required) < 2:
        return
    if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
        return
    raise _refused("minProperties", least, "list the properties, and which of them are required")


def _read_patterns(schema: dict[str, Any]) -> None:
    given = schema.get("pattern")
    if isinstance(given, str):
        schema["pattern"] = _translated("pattern", given, "fewer")
    form = schema.get("format")
    if isinstance(form, str) and form in _FORMATS:
        if isinstance(given, str):
            _also(schema, {"pattern": _FORMATS[form]})
        else:
            schema["pattern"] = _FORMATS[form]
    names = schema.get("patternProperties")
    if isinstance(names, dict):
        reading = _reading_of_names(schema.get("additionalProperties", True))
        read = {
            _translated("patternProperties", name, reading): value for name, value in names.items()
        }
        if len(read) < len(names):
            raise _refused("patternProperties", list(names), "give each pattern once")
        schema["patternProperties"] = read


def _translated(key: str, pattern: str, reading: Reading) -> str:
    try:
        return translated(pattern, reading)
    except InvalidRequestError as error:
        raise _RefusedError(key, str(error).removeprefix("json_schema ")) from None


def _reading_of_names(additional: Any) -> Reading:
    """Return the reading of patterns of names, so that no name escapes its schema.

    If no other names are allowed: names that match for all readers. If others may have any value:
        all that match for one reader. Otherwise the reading of ECMA 262.
    """
    if additional is False:
        return "fewer"
    return "more" if additional is True or additional == {} else "exact"


def _also(schema: dict[str, Any], other: dict[str, Any]) -> None:
    more = schema.get("allOf", [])
    if isinstance(more, list):
        schema["allOf"] = [*more, other]


def _refused(key: str, value: Any, way_out: str) -> _RefusedError:
    return _RefusedError(
        key, f"has {key} {short(value)}, which cannot be kept to the letter; {way_out}"
    )
