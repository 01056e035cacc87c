"""The filters and tests that a chat template may use, each with its cost.

Most are Jinja's own. The cost of each is counted before it works; filters that could make a large
result of small arguments in one call are reimplemented. Iterators that filters return count each
item when it is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any

from jinja2.environment import Environment
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import do_format, do_indent, do_round, ignore_case, make_attrgetter
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import pass_environment
from markupsafe import soft_str

from .format_fields import foresee_percents
from .metering import METER, Meter, TemplateLimitError
from .template_costs import contains, spend_search, spend_stripping, spend_text
from .template_rewrite import CONCATENATE, CONTAINS, KEY, SLICE, TICK, WEIGH

__all__ = ["FILTERS", "TESTS"]

_CHARACTERS_PER_UNIT = 64
_MAX_INDENT = 64
_MAX_DIGITS = 15
_MAX_NUMBER = 4300  # characters; Python reads no longer numbers with base 10
_TITLE, _WORDS = 1, 4  # characters per unit: these split a text by a regular expression
_WORD = re.compile(r"\w+")

Cost = Callable[[Meter, Any, tuple[Any, ...], dict[str, Any]], Any]
"""Counts a call's work, and returns the value that the filter gets instead of its own."""


def _metered(function: Callable[..., Any], cost: Cost) -> Callable[..., Any]:
    """Return `function` with its work and result counted, and Jinja's attributes kept."""
    n_before = int(hasattr(function, "jinja_pass_arg"))  # the environment or the context

    @wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        value = cost(meter, args[n_before], args[n_before + 1 :], kwargs)
        result = function(*args[:n_before], value, *args[n_before + 1 :], **kwargs)
        if isinstance(result, Iterator):
            units = _units_each(args[n_before + 1 :], kwargs)
            meter.spend(units)
            return meter.each(result, units)
        if result is not value:
            meter.spend_shallow(result)
        return result

    return metered


def _units_each(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the units that a filter needs for an item: those of the attribute that it looks up."""
    units = 1 + len(args) + len(kwargs)
    for text in (*args, *kwargs.values()):
        if isinstance(text, str):
            units += text.count(".") + text.count(",") + len(text) // _CHARACTERS_PER_UNIT
    return units


# -- costs -----------------------------------------------------------------------------------


def _light(meter: Meter, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Count a step that takes as long for any value."""
    meter.spend(1)
    return value


def _text(meter: Meter, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Count a pass over a value's text, and return that text."""
    if not isinstance(value, str):
        meter.spend_value(value)
        value = soft_str(value)
    meter.spend_shallow(value)
    spend_text(meter, value)
    return value


def _titled(meter: Meter, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    text = _text(meter, value, args, kwargs)
    spend_text(meter, text, _TITLE)
    return text


def _stripped(meter: Meter, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    text = value if isinstance(value, str) else _text(meter, value, args, kwargs)
    spend_stripping(meter, text, args[0] if args else kwargs.get("chars"))
    return text


def _number(meter: Meter, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Count arithmetic. Raises TypeError for anything but numbers, as `%` and `*` take texts."""
    for number in (value, *args, *kwargs.values()):
        if not isinstance(number, (int, float)):
            raise TypeError(f"{type(number).__name__} is not a number")
        meter.spend_shallow(number)
    return value


def _read(meter: Meter, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Count the reading of a number from a text, whose digits may count quadratically."""
    meter.spend_shallow(value)
    if isinstance(value, str) and len(value) > _MAX_NUMBER:
        raise TemplateLimitError(
            f"it reads a number of {len(value)} characters; at most {_MAX_NUMBER}"
        )
    return value


def _lazy(meter: Meter, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Count the arguments; the items are counted when they are taken."""
    meter.spend(_units_each(args, kwargs))
    return value


def _items(meter: Meter, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Count a list of the items, which the filter makes or passes through."""
    if isinstance(value, (str, dict, range)):
        meter.spend(1 + len(value))
    else:
        meter.spend_shallow(value)
    return value


def _reversed(meter: Meter, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(value, str):
        spend_text(meter, value)
        return value
    return _items(meter, value, args, kwargs)


def _compared(meter: Meter, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Count a search for the largest item: each attribute, and a comparison of whole values."""
    items = value if isinstance(value, (str, list, tuple, dict)) else list(value)
    meter.spend(1 + len(items) * _units_each(args, kwargs))
    meter.spend_value(items)
    return items


def _sorted(meter: Meter, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Count a sort: a comparison of whole values, as often as the logarithm of their number."""
    before = meter.left
    items = _compared(meter, value, args, kwargs)
    meter.spend_at_once((before - meter.left) * len(items).bit_length() // 8)
    return items


def _both(meter: Meter, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Count a comparison."""
    meter.spend_value(value)
    meter.spend_value(args)
    return value


def _looked_up(meter: Meter, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    meter.spend_key(value)
    return value


# -- filters of our own ----------------------------------------------------------------------


def _tick(units: int) -> bool:
    METER.get().spend(1 + units)
    return True


def _weigh(value: Any) -> Any:
    METER.get().spend_value(value)
    return value


def _weigh_slice(value: Any) -> Any:
    METER.get().spend_shallow(value)
    return value


def _key(value: Any) -> Any:
    (key,) = METER.get().spend_keys([value])
    return key


def _contains(item: Any, container: Any) -> bool:
    return contains(METER.get(), container, item)


def _concatenate(values: list[Any]) -> str:
    METER.get().spend_value(values)
    return "".join(map(str, values))


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    meter = METER.get()
    for item in (value, old, new):
        meter.spend_value(item)
    text, old, new = str(value), str(old), str(new)
    spend_search(meter, text, old)
    meter.spend_characters(len(text) + len(new) * (text.count(old) + 1))
    return text.replace(old, new, -1 if count is None else count)


@pass_environment
def _join(
    environment: Environment,
    value: Iterable[Any],
    d: str = "",
    attribute: str | int | None = None,
) -> str:
    meter = METER.get()
    if isinstance(value, str):
        meter.spend(len(value))
    items = list(value)
    meter.spend_shallow(items)
    if attribute is not None:
        meter.spend((1 + len(items)) * _units_each((attribute,), {}))
        items = list(map(make_attrgetter(environment, attribute), items))
    meter.spend_value(items)
    meter.spend_value(d)
    separator = str(d)
    meter.spend_characters(len(separator) * len(items))
    return separator.join(map(str, items))


def _indent(value: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    meter = METER.get()
    meter.spend_value(value)
    columns = len(width) if isinstance(width, str) else width
    if columns > _MAX_INDENT:
        raise TemplateLimitError(f"it indents by {columns} columns; at most {_MAX_INDENT}")
    text = value if isinstance(value, str) else str(value)
    spend_text(meter, text)
    lines = len(text) // 4 if blank or first else text.count("\n")
    meter.spend(lines)
    meter.spend_characters((text.count("\n") + 1) * columns)
    return do_indent(text, width, first, blank)


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    values = kwargs or args
    meter = METER.get()
    meter.spend_value(value)
    meter.spend_value(values)
    foresee_percents(meter, str(value), values)
    text = do_format(str(value), *args, **kwargs)
    meter.spend_value(text)
    return text


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    if not 0 <= precision <= _MAX_DIGITS:
        raise TemplateLimitError(f"it rounds to {precision} digits; at most {_MAX_DIGITS}")
    _number(METER.get(), value, (), {})
    return do_round(value, precision, method)


@pass_environment
def _unique(
    environment: Environment,
    value: Iterable[Any],
    case_sensitive: bool = False,
    attribute: str | int | None = None,
) -> Iterator[Any]:
    """Yield each item with another key than those before it."""
    meter = METER.get()
    lower = None if case_sensitive else ignore_case
    key_of = make_attrgetter(environment, attribute, postprocess=lower)
    units = _units_each((attribute,), {})
    items: list[Any] = []

    def keys() -> Iterator[Any]:
        for item in value:
            meter.spend(units)
            meter.spend_shallow(item)  # which becomes lower-case
            items[:] = [item]
            yield key_of(item)

    seen = set()
    for key in meter.spend_keys(keys()):
        if key not in seen:
            seen.add(key)
            yield items[0]


def _word_count(value: Any) -> int:
    meter = METER.get()
    meter.spend_value(value)
    text = soft_str(value)
    spend_text(meter, text, _WORDS)
    return sum(1 for _ in _WORD.finditer(text))  # unlike `findall`, lets other threads run


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON, without Jinja's HTML escapes: the filter of transformers."""
    wide = isinstance(indent, str) or (indent or 0) > _MAX_INDENT
    if wide or any(len(text) > _MAX_INDENT for text in separators or ()):
        raise TemplateLimitError(f"its JSON is spaced by more than {_MAX_INDENT} columns")
    meter = METER.get()
    meter.spend_value(value)
    if indent is not None:
        meter.spend_value(value)
        _spend_depth(meter, value)
    if sort_keys:
        meter.spend_value(value)
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    meter.spend_value(text)
    return text


def _spend_depth(meter: Meter, value: Any) -> None:
    """Count the indentation of each item, which is as wide as the item is deep."""
    stack = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, dict):
            item = list(item.values())
        if isinstance(item, (list, tuple)):
            meter.spend(1 + len(item) * depth)
            stack.extend((one, depth + 1) for one in item if isinstance(one, (dict, list, tuple)))


# -- tables ----------------------------------------------------------------------------------


def _each_metered(
    functions: Mapping[str, Any], costs: Mapping[str, Cost]
) -> dict[str, Callable[..., Any]]:
    return {
        name: _metered(functions[name], cost)
        for names, cost in costs.items()
        for name in names.split()
    }


FILTERS: dict[str, Callable[..., Any]] = {
    **_each_metered(
        JINJA_FILTERS,
        {
            "abs": _number,
            "capitalize e escape lower safe string upper": _text,
            "count d default first items last length": _light,
            "dictsort groupby sort": _sorted,
            "float int": _read,
            "list": _items,
            "map reject rejectattr select selectattr": _lazy,
            "max min": _compared,
            "reverse": _reversed,
            "title": _titled,
            "trim": _stripped,
        },
    ),
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "tojson": _to_json,
    "unique": _unique,
    "wordcount": _word_count,
    TICK: _tick,
    WEIGH: _weigh,
    SLICE: _weigh_slice,
    KEY: _key,
    CONTAINS: _contains,
    CONCATENATE: _concatenate,
}

TESTS = {
    **_each_metered(
        JINJA_TESTS,
        {
            "boolean callable defined escaped false float integer iterable mapping": _light,
            "none number sameas sequence string true undefined": _light,
            "filter test": _looked_up,
            "lower upper": _text,
            "divisibleby even odd": _number,
            "== != < <= > >= eq equalto ge greaterthan gt le lessthan lt ne": _both,
        },
    ),
    "in": _contains,
}
