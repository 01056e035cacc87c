"""The filters and tests that a chat template may use, each metered.

Most are Jinja's own, counted by their arguments and results. Filters that could make a large result
of small arguments in one call are reimplemented, so that they count before they work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

from jinja2.environment import Environment
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import do_format, do_indent, do_round, make_attrgetter
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import pass_environment

from .format_fields import foresee_percents
from .metering import METER, TemplateLimitError
from .template_rewrite import CONCATENATE, TICK, WEIGH

__all__ = ["FILTERS", "TESTS"]

_MAX_INDENT = 64
_MAX_DIGITS = 15
# Filters that make a text or a number from a text; all others iterate over its characters.
_OF_TEXTS = """
    abs capitalize count d default e escape float int length lower safe string title trim upper
    wordcount
"""
_OF_SEQUENCES = """
    dictsort first groupby items last list map max min reject rejectattr reverse select selectattr
    sort unique
"""


def _metered(function: Callable[..., Any], *, expands_text: bool) -> Callable[..., Any]:
    """Return `function` with its arguments and result counted, and Jinja's attributes kept."""

    @wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        for value in (*args, *kwargs.values()):
            meter.spend_value(value)
            if expands_text and isinstance(value, str):
                meter.spend(len(value))
        result = function(*args, **kwargs)
        meter.spend_value(result)
        return result

    return metered


def _metered_all(
    functions: Mapping[str, Any], names: Iterable[str], *, expands_text: bool
) -> dict[str, Callable[..., Any]]:
    return {name: _metered(functions[name], expands_text=expands_text) for name in names}


def _tick(characters: int) -> bool:
    METER.get().spend_characters(characters)
    return True


def _weigh(value: Any) -> Any:
    METER.get().spend_value(value)
    return value


def _concatenate(values: list[Any]) -> str:
    METER.get().spend_value(values)
    return "".join(map(str, values))


def _replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    meter = METER.get()
    for item in (value, old, new):
        meter.spend_value(item)
    text, old, new = str(value), str(old), str(new)
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
    items = list(value)
    if attribute is not None:
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
    text = str(value)
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
    METER.get().spend(1)
    return do_round(value, precision, method)


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
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    meter.spend_value(text)
    return text


FILTERS: dict[str, Callable[..., Any]] = {
    **_metered_all(JINJA_FILTERS, _OF_TEXTS.split(), expands_text=False),
    **_metered_all(JINJA_FILTERS, _OF_SEQUENCES.split(), expands_text=True),
    "format": _format,
    "indent": _indent,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "tojson": _to_json,
    TICK: _tick,
    WEIGH: _weigh,
    CONCATENATE: _concatenate,
}

TESTS = _metered_all(JINJA_TESTS, JINJA_TESTS, expands_text=False)
