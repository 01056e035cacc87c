"""Models by their names on the Hugging Face hub: from its cache on this machine, or downloaded.

Imports only the standard library and, for a download, `huggingface_hub`: the sidecar's front
resolves models without opening them.
"""

from __future__ import annotations

from .download import Progress
from .hub_cache import bytes_of, cache_folder, list_models, origin_of
from .hub_files import chosen_mmproj, is_mmproj, matching, parts_of
from .hub_name import hub_name
from .places import absolute_model, find_model, name_of

__all__ = [
    "Progress",
    "absolute_model",
    "bytes_of",
    "cache_folder",
    "chosen_mmproj",
    "find_model",
    "hub_name",
    "is_mmproj",
    "list_models",
    "matching",
    "name_of",
    "origin_of",
    "parts_of",
]
