"""`Meter`: limits the work of one rendering of a chat template."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from contextvars import ContextVar
from types import NoneType
from typing import Any

from jinja2.utils import Namespace
from markupsafe import Markup

__all__ = [
    "MAX_INTEGER_BITS",
    "METER",
    "Meter",
    "RenderingAbandonedError",
    "TemplateLimitError",
    "check_bits",
]

_CHARACTERS_PER_UNIT = 64
_ITEMS_PER_UNIT = 16
_BASE_UNITS = 200_000
_UNITS_PER_INPUT_UNIT = 64
_UNITS_BETWEEN_LOOKS = 4096
_MOST_AT_ONCE = 2**16  # units of a step that takes longer than its operands are long
MAX_INTEGER_BITS = 4096
_SMALL_BITS = 60  # whole numbers of more bits may have equal hashes
_MOST_LARGE_KEYS = 64
_MAX_KEY_DEPTH = 32
_MARKUP = 6  # characters that one character of a text may become when it is escaped


class TemplateLimitError(Exception):
    """Raised when a template exceeds its work limit, or uses a feature that is not allowed."""


def check_bits(bits: int) -> None:
    """Raise TemplateLimitError for a whole number of too many bits."""
    if bits > MAX_INTEGER_BITS:
        raise TemplateLimitError(f"it computes with more than {MAX_INTEGER_BITS} bits")


class RenderingAbandonedError(Exception):
    """Raised in a rendering whose result nobody waits for any longer."""


class Meter:
    """Counts work in units of at most a microsecond: a step of a template, an item, 64 characters.

    The limit suffices for all templates in use, and grows with the conversation: `200,000 + 64 *
    (units of the input)`. Since work is counted and not time, whether a template is stopped does
    not depend on the machine.

    goes_on: called about every four milliseconds; if it returns False, RenderingAbandonedError is
        raised.
    """

    def __init__(self, variables: Any, goes_on: Callable[[], bool] | None = None) -> None:
        self._goes_on = goes_on
        self._next_look = 0
        self._left = 2**63
        self.spend_value(variables)
        self._left = _BASE_UNITS + _UNITS_PER_INPUT_UNIT * (2**63 - self._left)
        self._next_look = self._left if goes_on else 0

    @property
    def left(self) -> int:
        """The units that are left."""
        return self._left

    def spend(self, units: int) -> None:
        """Count work. Raises TemplateLimitError above the limit."""
        self._left -= units
        if self._left < self._next_look:
            self._look()

    def _look(self) -> None:
        if self._left < 0:
            raise TemplateLimitError(
                "it does not come to an end, or makes far more of the messages than a prompt"
            )
        if self._goes_on is not None and not self._goes_on():
            raise RenderingAbandonedError("nobody waits for the text any longer")
        self._next_look = max(0, self._left - _UNITS_BETWEEN_LOOKS)

    def spend_characters(self, count: int) -> None:
        """Count the creation of a text, or one pass over it."""
        self.spend(1 + count // _CHARACTERS_PER_UNIT)

    def spend_at_once(self, units: int) -> None:
        """Count one step in native code whose work is no multiple of its operands' lengths.

        Such a step cannot be interrupted, so it also has a limit of its own.
        """
        if units > _MOST_AT_ONCE:
            raise TemplateLimitError(
                "one step of it does far more work than its texts and lists are long"
            )
        self.spend(units)

    def spend_shallow(self, value: Any) -> None:
        """Count the creation of a value, or of a list of values that are there already.

        Raises TemplateLimitError for a number of too many bits too.
        """
        kind = type(value)
        if kind is str:
            self.spend(1 + len(value) // _CHARACTERS_PER_UNIT)
        elif kind is int:
            self.spend_integer(value)
        elif isinstance(value, Markup):
            self.spend(1 + _MARKUP * len(value) // _CHARACTERS_PER_UNIT)
        elif isinstance(value, (list, tuple, dict)):
            self.spend(1 + len(value) // _ITEMS_PER_UNIT)
        else:
            self.spend(1)

    def spend_integer(self, value: int) -> None:
        """Count a pass over a whole number. Raises TemplateLimitError for too many bits."""
        bits = value.bit_length()
        check_bits(bits)
        self.spend(1 + bits // _CHARACTERS_PER_UNIT)

    def spend_value(self, value: Any) -> None:
        """Count a value with all its contents, as often as they occur.

        So a list of lists of lists that would be gigabytes of text costs as much as that text,
        before it is written.
        """
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                length = _MARKUP * len(item) if isinstance(item, Markup) else len(item)
                self.spend(1 + length // _CHARACTERS_PER_UNIT)
            elif isinstance(item, _SCALARS):
                if type(item) is int:
                    self.spend_integer(item)
                else:
                    self.spend(1)
            elif isinstance(item, _CONTAINERS):
                self.spend(1 + len(item))
                stack.extend(item)
            elif isinstance(item, dict):
                self.spend(1 + 2 * len(item))
                stack.extend(item)
                stack.extend(item.values())
            elif isinstance(item, range):
                self.spend(1 + len(item))
            elif isinstance(item, Namespace):
                stack.append(object.__getattribute__(item, "_Namespace__attrs"))
            else:
                self.spend(1)

    def spend_key(self, key: Any, depth: int = 0) -> None:
        """Count the hash of a value. Raises TemplateLimitError for a deeply nested tuple."""
        if isinstance(key, str):
            self.spend_characters(len(key))
        elif isinstance(key, tuple):
            if depth > _MAX_KEY_DEPTH:
                raise TemplateLimitError("its keys are nested too deeply")
            self.spend(1 + len(key))
            for item in key:
                self.spend_key(item, depth + 1)
        else:
            self.spend(1)

    def spend_keys(self, keys: Any) -> Iterator[Any]:
        """Yield keys that a mapping or a set is made of, and count them.

        The hash of texts is secret; large numbers and tuples with one hash can be computed, and
        finding one of n such keys takes n steps. Raises TemplateLimitError for more than a few.
        """
        n_large = 0
        for key in keys:
            self.spend_key(key)
            if isinstance(key, tuple) or (isinstance(key, int) and key.bit_length() > _SMALL_BITS):
                n_large += 1
                if n_large > _MOST_LARGE_KEYS:
                    raise TemplateLimitError(
                        f"more than {_MOST_LARGE_KEYS} keys are large numbers or tuples"
                    )
            yield key

    def each(self, items: Iterator[Any], units: int = 1) -> Iterator[Any]:
        """Yield the items of an iterator, and count each when it is taken."""
        for item in items:
            self.spend(units)
            yield item


# The abstract classes come last, after the scalars, since testing for them takes far longer.
_SCALARS = (int, float, NoneType)
_CONTAINERS = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)

METER: ContextVar[Meter] = ContextVar("pybatcher.template_meter")
"""The meter of the rendering in this context.

No meter is set while a template is compiled, so that no metered operation can be evaluated then.
"""
