"""What Python is on macOS, for processes whose PYTHONPATH begins with this folder."""

from __future__ import annotations

from pathlib import Path

__all__ = ["FOLDER"]

FOLDER = str(Path(__file__).parent)
