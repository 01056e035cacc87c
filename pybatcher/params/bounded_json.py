"""`bounded_json`: writes a caller's value as JSON of limited size."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["TooLargeError", "bounded_json"]


_SMALL = (bool, float)  # types with few characters


class TooLargeError(ValueError):
    """The text would exceed its limit of characters."""


def bounded_json(value: object, most: int) -> str:
    """Return a value as JSON of about `most` characters at the most.

    The contents of lists and dictionaries are read directly, whatever methods their classes
    override. A few objects that contain each other many times over reach the limit as early as many
    objects do. Raises TooLargeError, and the exceptions of `json.dumps` and of a value's own
    methods.
    """
    return json.dumps(_Copier(most).plain(value), ensure_ascii=False, allow_nan=False)


class _Copier:
    """Copies containers, and counts at least one character for each value."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most

    def plain(self, value: Any) -> Any:
        """Return a dict or a list as one of its base class; any other value unchanged."""
        if isinstance(value, dict):
            self._spend(2 * dict.__len__(value))
            self._spend(sum(str.__len__(key) for key in dict.keys(value) if isinstance(key, str)))
            return {
                key: one if one is None or type(one) in _SMALL else self._item(one)
                for key, one in dict.items(value)
            }
        if isinstance(value, (list, tuple)):
            base: Any = list if isinstance(value, list) else tuple
            self._spend(base.__len__(value))
            return [self._item(one) for one in base.__iter__(value)]
        return value

    def _item(self, value: Any) -> Any:
        if isinstance(value, str):
            n_characters = str.__len__(value)
        elif isinstance(value, int):
            n_characters = int.bit_length(value) // 4  # its digits, or fewer
        else:
            return self.plain(value)
        if n_characters:
            self._spend(n_characters)
        return value

    def _spend(self, n_characters: int) -> None:
        self._left -= n_characters
        if self._left < 0:
            raise TooLargeError(f"it has more than {self._most} characters")
