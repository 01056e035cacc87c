"""`Fields`: a JSON object with accessors that check type and range."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from ...errors import ModelFormatError

__all__ = ["Fields", "shown", "shown_name"]

_REQUIRED: Any = object()


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 120


def shown(value: object) -> str:
    """Return the `repr` of an untrusted value, shortened to a bounded length, on one line."""
    return " ".join(line.strip() for line in _REPR.repr(value).splitlines())


def shown_name(name: str) -> str:
    """Return the name of a field or a tensor; a hostile name is escaped and shortened."""
    is_plain = name.isprintable() and len(name) <= _REPR.maxstring
    return name if is_plain else shown(name)[1:-1]


class Fields:
    """The fields of one JSON object; every error message names `source`.

    An accessor returns `default` for a field that is absent or null. Without a default
    it raises ModelFormatError, as for a value of the wrong type or out of range.

    keys: other names of fields, for messages: fields that were translated from another format. An
    object in a field may be a `Fields` too.
    """

    def __init__(
        self, values: Mapping[str, Any], source: str, keys: Mapping[str, str] | None = None
    ) -> None:
        self._values = values
        self._keys = keys or {}
        self.source = source

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def names(self) -> list[str]:
        """Return the names of all fields."""
        return list(self._values)

    def get(self, name: str) -> Any:
        """Return the unchecked value; None if the field is absent."""
        return self._values.get(name)

    def error(self, name: str, expected: str) -> ModelFormatError:
        """Return a ModelFormatError that names the field, its value and the `expected` one."""
        said = f"{self.source}: {shown_name(self._keys.get(name, name))}"
        if name not in self._values:
            return ModelFormatError(f"{said} is missing; expected {expected}")
        return ModelFormatError(f"{said} is {shown(self._values[name])}; expected {expected}")

    def integer(self, name: str, low: int, high: int, default: Any = _REQUIRED) -> Any:
        """Return the field as an int in [low, high]."""
        value = self._values.get(name)
        if value is None and default is not _REQUIRED:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: Any = _REQUIRED) -> Any:
        """Return the field as a finite float in [low, high]."""
        value = self._values.get(name)
        if value is None and default is not _REQUIRED:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(name, f"a number from {low:g} to {high:g}")
        if not low <= value <= high or not math.isfinite(value):
            raise self.error(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def numbers(self, name: str, count: int, low: float, high: float) -> list[float]:
        """Return the field as a list of `count` finite floats in [low, high]."""
        values = self._values.get(name)
        expected = f"a list of {count} numbers from {low:g} to {high:g}"
        if not isinstance(values, list) or len(values) != count:
            raise self.error(name, expected)
        if any(type(value) not in (int, float) or not low <= value <= high for value in values):
            raise self.error(name, expected)
        return [float(value) for value in values]

    def boolean(self, name: str, default: bool) -> bool:
        """Return the field as a bool."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return the field as a str."""
        value = self._values.get(name)
        if value is None and default is not _REQUIRED:
            return default
        if not isinstance(value, str):
            raise self.error(name, "a text")
        return value

    def child(self, name: str) -> Fields:
        """Return the object in field `name`, as `Fields`; empty if the field is absent."""
        value = self._values.get(name)
        if isinstance(value, Fields):
            return value
        if value is not None and not isinstance(value, dict):
            raise self.error(name, "an object")
        return Fields(value or {}, f"{self.source}: {shown_name(name)}")

    def without(self, name: str) -> Fields:
        """Return the same object without a field."""
        return self._with({k: v for k, v in self._values.items() if k != name})

    def with_defaults(self, defaults: Mapping[str, Any]) -> Fields:
        """Return the same object with the fields of `defaults` that are absent; null stays null."""
        return self._with({**defaults, **self._values})

    def with_values(self, values: Mapping[str, Any]) -> Fields:
        """Return the same object with these fields instead of its own."""
        return self._with({**self._values, **values})

    def _with(self, values: Mapping[str, Any]) -> Fields:
        return Fields(values, self.source, self._keys)

    def refuse_unless(self, name: str, *allowed: object) -> None:
        """Raise ModelFormatError if the field is set to a value that is not in `allowed`."""
        value = self._values.get(name)
        if value is not None and not any(type(value) is type(a) and value == a for a in allowed):
            supported = " or ".join(map(repr, allowed)) if allowed else "no such field"
            raise self.error(name, f"{supported}; nothing else is supported")
