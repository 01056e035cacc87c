"""`Meter`: limits the work of one rendering of a chat template."""

from __future__ import annotations

from collections.abc import ItemsView, KeysView, ValuesView
from contextvars import ContextVar
from types import NoneType
from typing import Any

from jinja2.utils import Namespace

__all__ = ["METER", "Meter", "TemplateLimitError"]

_CHARACTERS_PER_UNIT = 64
_BASE_UNITS = 200_000
_UNITS_PER_INPUT_UNIT = 64


class TemplateLimitError(Exception):
    """Raised when a template exceeds its work limit, or uses a feature that is not allowed."""


class Meter:
    """Counts work in units: a step of a template, a value of a container, 64 characters.

    The limit suffices for all templates in use, and grows with the conversation: `200,000 + 64 *
    (units of the input)`, which is well under a second of work. Since work is counted and not time,
    whether a template is stopped does not depend on the machine.
    """

    def __init__(self, variables: Any) -> None:
        self._left = 2**63
        self.spend_value(variables)
        self._left = _BASE_UNITS + _UNITS_PER_INPUT_UNIT * (2**63 - self._left)

    def spend(self, units: int) -> None:
        """Count work. Raises TemplateLimitError above the limit."""
        self._left -= units
        if self._left < 0:
            raise TemplateLimitError(
                "it does not come to an end, or makes far more of the messages than a prompt"
            )

    def spend_characters(self, count: int) -> None:
        """Count the creation of a text."""
        self.spend(1 + count // _CHARACTERS_PER_UNIT)

    def spend_value(self, value: Any) -> None:
        """Count a value with all its contents, as often as they occur.

        So a list of lists of lists that would be gigabytes of text costs as much as that text,
        before it is written.
        """
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                self.spend_characters(len(item))
            elif isinstance(item, _SCALARS):
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


# The abstract classes come last, after the scalars, since testing for them takes far longer.
_SCALARS = (int, float, NoneType)
_CONTAINERS = (list, tuple, set, frozenset, KeysView, ValuesView, ItemsView)

METER: ContextVar[Meter] = ContextVar("pybatcher.template_meter")
"""The meter of the rendering in this context.

No meter is set while a template is compiled, so that no metered operation can be evaluated then.
"""
