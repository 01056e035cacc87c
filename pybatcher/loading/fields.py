"""`Fields`: a JSON object whose fields are checked as they are read."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from ..errors import ModelFormatError

__all__ = ["Fields", "shown"]

_REQUIRED: Any = object()


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 120


def shown(value: object) -> str:
    """A `repr` of bounded length, for hostile values of any size."""
    return _REPR.repr(value)


class Fields:
    """The fields of one JSON object; `source` names it in every message.

    A field that is absent, or null, takes `default`; without a default it is a
    ModelFormatError, as is a value of the wrong kind or out of range.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values = values
        self.source = source

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def get(self, name: str) -> Any:
        """The raw value, None where absent."""
        return self._values.get(name)

    def error(self, name: str, expected: str) -> ModelFormatError:
        """The error that says what was found in `name`, and what was expected."""
        if name not in self._values:
            return ModelFormatError(f"{self.source}: {name} is missing; expected {expected}")
        found = shown(self._values[name])
        return ModelFormatError(f"{self.source}: {name} is {found}; expected {expected}")

    def integer(self, name: str, low: int, high: int, default: Any = _REQUIRED) -> Any:
        """A whole number in [low, high]."""
        value = self._values.get(name)
        if value is None and default is not _REQUIRED:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: Any = _REQUIRED) -> Any:
        """A finite number in [low, high], as a float."""
        value = self._values.get(name)
        if value is None and default is not _REQUIRED:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(name, f"a number from {low:g} to {high:g}")
        if not low <= value <= high or not math.isfinite(value):
            raise self.error(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """True or False."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> Any:
        """A str."""
        value = self._values.get(name)
        if value is None and default is not _REQUIRED:
            return default
        if not isinstance(value, str):
            raise self.error(name, "a text")
        return value

    def child(self, name: str) -> Fields:
        """The object in field `name`; an empty one where it is absent."""
        value = self._values.get(name)
        if value is None:
            return Fields({}, f"{self.source}: {name}")
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return Fields(value, f"{self.source}: {name}")

    def refuse_unless(self, name: str, *allowed: object) -> None:
        """Refuse a set field that has none of the `allowed` values."""
        value = self._values.get(name)
        if value is not None and not any(type(value) is type(a) and value == a for a in allowed):
            supported = " or ".join(map(repr, allowed)) if allowed else "no such field"
            raise self.error(name, f"{supported}; nothing else is supported")
