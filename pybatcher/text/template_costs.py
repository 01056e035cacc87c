"""The costs of methods and operators in templates: units of work, counted before the work is done.

A method or an operator that is not in `METHODS` or `OPERATORS` cannot be used. The costs hold for
the worst operands: a search from the right compares each character of the text with each one of the
pattern, for example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from markupsafe import Markup

from .format_fields import foresee_percents
from .metering import Meter, check_bits

__all__ = [
    "METHODS",
    "OPERATORS",
    "contains",
    "method_cost",
    "spend_search",
    "spend_stripping",
    "spend_text",
]

_SHORT_TEXT, _SHORT_PATTERN = 30_000, 100
"""Python searches a longer text for a longer pattern in time proportional to their lengths."""

_COMPARISONS_PER_UNIT = 1024
_STRIPPED_PER_UNIT = 256
_CHARACTERS_PER_UNIT = 16  # of a pass that looks each character up in a table

MethodCost = Callable[[Meter, Any, tuple[Any, ...], dict[str, Any]], None]


def spend_text(meter: Meter, text: str, characters_per_unit: int = _CHARACTERS_PER_UNIT) -> None:
    """Count a pass over a text that takes longer for a character than a copy."""
    meter.spend(1 + len(text) // characters_per_unit)


def spend_search(meter: Meter, text: str, pattern: object, *, reverse: bool = False) -> None:
    """Count a search for a pattern, which may occur many times."""
    n, m = len(text), len(pattern) if isinstance(pattern, str) else 0
    meter.spend_characters(n + m)
    if reverse or (n < _SHORT_TEXT and m < _SHORT_PATTERN):
        meter.spend_at_once(n * m // _COMPARISONS_PER_UNIT)


def spend_stripping(meter: Meter, text: str, characters: object) -> None:
    """Count the removal of characters from the ends of a text."""
    meter.spend_characters(len(text))
    if isinstance(characters, str):
        meter.spend_at_once(len(text) * len(characters) // _STRIPPED_PER_UNIT)


# -- methods of texts ------------------------------------------------------------------------


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _pass(meter: Meter, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    spend_text(meter, text)


def _copy(meter: Meter, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    meter.spend_characters(len(text))
    meter.spend_value(args)


def _search(meter: Meter, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    spend_search(meter, text, _argument(args, kwargs, 0, "sub"))


def _search_back(meter: Meter, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    spend_search(meter, text, _argument(args, kwargs, 0, "sub"), reverse=True)


def _strip(meter: Meter, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    spend_stripping(meter, text, _argument(args, kwargs, 0, "chars"))


def _split(
    meter: Meter,
    text: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    reverse: bool = False,
) -> None:
    separator = _argument(args, kwargs, 0, "sep")
    if not isinstance(separator, str):
        meter.spend(1 + len(text) // 4)
    elif separator:
        spend_search(meter, text, separator, reverse=reverse)
        meter.spend(text.count(separator))


def _split_back(meter: Meter, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _split(meter, text, args, kwargs, reverse=True)


def _split_lines(meter: Meter, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    meter.spend(1 + len(text) // 4)


def _replace(meter: Meter, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    old, new = _argument(args, kwargs, 0, "old"), _argument(args, kwargs, 1, "new")
    spend_search(meter, text, old)
    if isinstance(old, str) and isinstance(new, str):
        meter.spend_value(new)  # a text that is escaped becomes longer
        meter.spend_characters(len(text) + len(new) * (text.count(old) + 1))


def _join(meter: Meter, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    items = args[0] if args else ()
    if isinstance(items, str):
        meter.spend(len(items))
    elif isinstance(items, (list, tuple)):
        meter.spend_value(items)
    meter.spend_characters(len(text) * (len(items) if hasattr(items, "__len__") else 0))


def _format(meter: Meter, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Count nothing: the sandbox's own `format` counts its fields."""


# -- methods of containers -------------------------------------------------------------------


def _scan(meter: Meter, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    meter.spend_value(args)
    meter.spend_value(owner)


def _list(meter: Meter, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    meter.spend_shallow(owner)


def _get(meter: Meter, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    meter.spend_key(args[0] if args else None)


def _view(meter: Meter, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    meter.spend(1)


_PASSES = """
    capitalize isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace istitle isupper
    lower swapcase title upper
"""
_TEXT: dict[str, MethodCost] = {
    **dict.fromkeys(_PASSES.split(), _pass),
    **dict.fromkeys(["endswith", "startswith", "removeprefix", "removesuffix"], _copy),
    **dict.fromkeys(["count", "find", "index", "partition"], _search),
    **dict.fromkeys(["rfind", "rindex", "rpartition"], _search_back),
    **dict.fromkeys(["strip", "lstrip", "rstrip"], _strip),
    "split": _split,
    "rsplit": _split_back,
    "splitlines": _split_lines,
    "replace": _replace,
    "join": _join,
    "format": _format,
}
_TUPLE: dict[str, MethodCost] = {"count": _scan, "index": _scan}

METHODS: dict[type, dict[str, MethodCost]] = {
    str: _TEXT,
    dict: {"copy": _list, "get": _get, "items": _view, "keys": _view, "values": _view},
    list: {"copy": _list, **_TUPLE},
    tuple: _TUPLE,
    int: {},
    float: {},
}
"""The cost of each method that a template may call, by the type of its owner.

A cost is called with the meter, the owner and the arguments, before the method is called.
"""


def method_cost(owner: object, name: str) -> MethodCost | None:
    """Return the cost of a method of a plain value; None if a template may not call it."""
    methods = METHODS.get(type(owner))
    if methods is None:
        methods = next((METHODS[kind] for kind in METHODS if isinstance(owner, kind)), {})
    return methods.get(name)


# -- operators -------------------------------------------------------------------------------


def _add(meter: Meter, left: Any, right: Any) -> None:
    meter.spend_shallow(left)
    meter.spend_shallow(right)
    if isinstance(left, Markup) or isinstance(right, Markup):
        meter.spend_value((left, right))


def _subtract(meter: Meter, left: Any, right: Any) -> None:
    for operand in (left, right):
        if isinstance(operand, (int, float)):
            meter.spend_shallow(operand)
        else:  # a view of a dictionary
            meter.spend_value(operand)
    if not isinstance(right, (int, float)):
        for _ in meter.spend_keys(right):
            pass


def _divide(meter: Meter, left: Any, right: Any) -> None:
    meter.spend_shallow(left)
    meter.spend_shallow(right)


def _modulo(meter: Meter, left: Any, right: Any) -> None:
    if isinstance(left, str):
        foresee_percents(meter, left, right)
    _divide(meter, left, right)


def _multiply(meter: Meter, left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if not isinstance(times, int):
            continue
        if isinstance(value, int):
            check_bits(value.bit_length() + times.bit_length())
        if isinstance(value, str):
            meter.spend_characters(len(value) * max(times, 0))
        elif isinstance(value, (list, tuple)):
            meter.spend(len(value) * max(times, 0))
    meter.spend(1)


def _power(meter: Meter, base: Any, exponent: Any) -> None:
    meter.spend(1)
    if isinstance(base, int) and isinstance(exponent, int):
        check_bits(base.bit_length() * abs(exponent))


OPERATORS: dict[str, Callable[[Meter, Any, Any], None]] = {
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "/": _divide,
    "//": _divide,
    "%": _modulo,
    "**": _power,
}
"""The cost of each operator on two values, counted before it is computed."""


def contains(meter: Meter, container: Any, item: Any) -> bool:
    """Return `item in container`, counted."""
    if isinstance(container, str):
        spend_search(meter, container, item)
    elif isinstance(container, dict):
        meter.spend_key(item)
    elif isinstance(container, (list, tuple)):
        if isinstance(item, (str, int, float)) or item is None:
            length = len(item) if isinstance(item, str) else 1
            meter.spend(1 + len(container) * (1 + length // 64) // 8)
        else:
            meter.spend_value(item)
            meter.spend_value(container)
    elif isinstance(container, Iterator):
        return any(_is_equal(meter, one, item) for one in container)
    else:
        meter.spend_key(item)
        meter.spend_value(container)
    return item in container


def _is_equal(meter: Meter, one: Any, other: Any) -> bool:
    meter.spend_value(one)
    meter.spend_value(other)
    return one is other or bool(one == other)
