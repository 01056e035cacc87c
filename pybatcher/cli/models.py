"""`pybatcher models`: list the models in the cache of the Hugging Face hub."""

from __future__ import annotations

import os

from ..machine.memory import size_text
from ..models.hub import cache_folder, list_models
from .console import visible, write

__all__ = ["models"]


def models() -> None:
    """List the models of the Hugging Face hub that are on this machine, with their sizes."""
    folder = cache_folder(os.environ)
    found = list_models(folder)
    names = [visible(model.name) for model in found]
    width = max(map(len, names), default=0)
    for name, model in zip(names, found, strict=True):
        state = "" if model.is_whole else "  incomplete"
        write(f"{name:{width}}  {size_text(model.bytes):>12}{state}\n")
    total = sum(model.bytes for model in found)
    count = f"{len(found)} {'model' if len(found) == 1 else 'models'}"
    write(f"{visible(str(folder))}: {count}, {size_text(total)}\n")
