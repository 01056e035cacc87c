"""`ArchitectureKeys`: the metadata of a GGUF file that belong to its architecture."""

from __future__ import annotations

from typing import Any

from .fields import Fields

__all__ = ["ArchitectureKeys"]


class ArchitectureKeys:
    """Access to one architecture's keys without their prefix: `block_count` of `llama.`."""

    def __init__(self, fields: Fields, architecture: str) -> None:
        self.fields = fields
        self.prefix = f"{architecture}."

    def error(self, name: str, expected: str) -> Exception:
        """Return a ModelFormatError that names the key, its value and the `expected` one."""
        return self.fields.error(self.prefix + name, expected)

    def get(self, name: str) -> Any:
        """Return the unchecked value; None where the key is absent."""
        return self.fields.get(self.prefix + name)

    def integer(self, name: str, low: int, high: int, *default: int) -> int:
        """Return the key as an int in [low, high]."""
        value: int = self.fields.integer(self.prefix + name, low, high, *default)
        return value

    def number(self, name: str, low: float, high: float, *default: float) -> float:
        """Return the key as a finite float in [low, high]."""
        value: float = self.fields.number(self.prefix + name, low, high, *default)
        return value

    def refuse_unless(self, name: str, *allowed: object) -> None:
        """Raise ModelFormatError if the key is set to none of the `allowed` values."""
        self.fields.refuse_unless(self.prefix + name, *allowed)
