"""`ArchitectureKeys`: the metadata of a GGUF file whose keys begin with its architecture."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..checkpoints.fields import Fields

__all__ = ["ArchitectureKeys"]


class ArchitectureKeys:
    """Typed access to an architecture's keys by name without prefix: `llama.` is implied."""

    def __init__(self, fields: Fields, architecture: str) -> None:
        self.fields = fields
        self.prefix = f"{architecture}."

    def error(self, name: str, expected: str) -> Exception:
        """Return a ModelFormatError that names the key, its value and the `expected` one."""
        return self.fields.error(self.prefix + name, expected)

    def get(self, name: str) -> Any:
        """Return the unchecked value; None if the key is absent."""
        return self.fields.get(self.prefix + name)

    def integer(self, name: str, low: int, high: int, *default: int) -> int:
        """Return the key as an int in [low, high]."""
        value: int = self.fields.integer(self.prefix + name, low, high, *default)
        return value

    def number(self, name: str, low: float, high: float, *default: float) -> float:
        """Return the key as a finite float in [low, high]."""
        value: float = self.fields.number(self.prefix + name, low, high, *default)
        return value

    def by_layer(self, name: str, n_layers: int, high: int, *default: int) -> list[int]:
        """Return the key as an int in [1, high] for each layer.

        The key is one number for all layers, or an array. As in llama.cpp, many converters write
        an array where all layers are equal.
        """
        value = self.get(name)
        if not isinstance(value, np.ndarray):
            return [self.integer(name, 1, high, *default)] * n_layers
        is_whole = value.dtype.kind in "iu" and len(value) == n_layers
        if not is_whole or not ((value >= 1) & (value <= high)).all():
            raise self.error(
                name, f"a number from 1 to {high}, or one for each of {n_layers} layers"
            )
        values: list[int] = value.tolist()
        return values

    def flags(self, name: str, n_layers: int, otherwise: str = "") -> list[bool]:
        """Return a truth value for each layer; the key is an array of bools, or of 0 and 1.

        otherwise: a description of other valid values, for the message.
        """
        value = self.get(name)
        is_whole = isinstance(value, np.ndarray) and value.dtype.kind in "biu"
        if not is_whole or len(value) != n_layers or not np.isin(value, (0, 1)).all():
            raise self.error(name, f"a truth value for each of {n_layers} layers{otherwise}")
        return [bool(flag) for flag in value]

    def refuse_unless(self, name: str, *allowed: object) -> None:
        """Raise ModelFormatError if the key is set to a value that is not in `allowed`."""
        self.fields.refuse_unless(self.prefix + name, *allowed)
