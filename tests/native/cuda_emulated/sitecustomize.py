"""Let the package beside this file win over an editable install, and over pytest's `pythonpath`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

HERE = str(Path(__file__).parent)


class EmulatedFinder:
    """Finds pybatcher and its modules here."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, _: object = None) -> ModuleSpec | None:
        """Return where the module is, or None for those of other packages."""
        if name == "pybatcher":
            return PathFinder.find_spec(name, [HERE])
        return PathFinder.find_spec(name, path) if name.startswith("pybatcher.") else None


sys.meta_path.insert(0, EmulatedFinder)
