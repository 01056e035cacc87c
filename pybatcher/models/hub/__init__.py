"""Models by their names on the Hugging Face hub: from its cache on this machine, or downloaded.

Imports only the standard library and, for a download, `huggingface_hub`: the sidecar's front
resolves models without opening them.
"""

from __future__ import annotations

from .download import Progress
from .hub_cache import origin_of
from .hub_files import matching, parts_of
from .places import absolute_model, find_model, name_of

__all__ = [
    "Progress",
    "absolute_model",
    "find_model",
    "matching",
    "name_of",
    "origin_of",
    "parts_of",
]
