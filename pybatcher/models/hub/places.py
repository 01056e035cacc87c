"""`find_model`: resolves a path or a name on the hub to the path of a model."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...errors import ModelFormatError
from ...errors.checks import short
from .download import Progress, download
from .hub_cache import cache_folder, find_cached, is_offline, origin_of
from .hub_name import hub_name

__all__ = ["absolute_model", "find_model", "name_of"]

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ON_HUB = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<repo>[^/?#]+/[^/?#]+)"
    r"(?:/(?:resolve|blob)/[^/?#]+/(?P<file>[^?#]+\.gguf))?"
)


def find_model(model: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """Return the path of a model: of a directory or a GGUF file.

    model: a path, or a name on the hub, such as "Qwen/Qwen3-0.6B". An existing path wins; a text
        that can only be a path is returned unchanged, whether it exists or not. No file is
        looked up for an absolute one.
    progress: called while files are downloaded, with the bytes so far and the total.

    A name is looked up in the hub's cache. Missing files are downloaded once, for this and all
    other processes. Raises ModelFormatError for a name without a model.
    """
    if not isinstance(model, str):
        model = os.path.join(os.curdir, model)  # a path is no name on the hub
    if not os.path.isabs(model) and not _exists(model):
        model = _at_home(model)
    if os.path.isabs(model) or _exists(model):
        return Path(model)
    _refuse_address(model)
    name = hub_name(model)
    if name is None:
        return Path(model)
    cache = cache_folder(os.environ)
    found = find_cached(name, cache)
    if found is not None and (found.is_whole or is_offline(os.environ)):
        return found.path
    if is_offline(os.environ):
        raise ModelFormatError(
            f"{short(model)}: no such directory or GGUF file, and as a name on the hub it is not "
            f"in the cache {cache}; HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE forbids to download it"
        )
    try:
        return download(name, cache, progress)
    except ModelFormatError:
        if found is None:
            raise
        return found.path  # the missing file may be in no version of the model


def absolute_model(model: str, folder: Path) -> str:
    """Return a path as an absolute one, relative to `folder`; a name on the hub unchanged.

    Raises ModelFormatError for a text that begins with "hf:" and is no name.
    """
    if _ADDRESS.match(model):
        return model  # find_model refuses it
    path = folder / os.path.expanduser(model)
    return str(path) if os.path.isabs(model) or _exists(path) or hub_name(model) is None else model


def name_of(path: Path) -> str:
    """Return the display name of a model in a directory: in the cache, its repository's name."""
    origin = origin_of(path)
    return path.name if origin is None else origin.split("@")[0].rsplit("/", 1)[-1]


def _at_home(model: str) -> str:
    """Return a path that begins with ~ in the home directory; any other text unchanged."""
    start = model.removeprefix(os.path.join(os.curdir, ""))
    if not start.startswith("~"):
        return model
    expanded = os.path.expanduser(start)
    return expanded if os.path.isabs(expanded) else model


def _refuse_address(model: str) -> None:
    """Raise ModelFormatError for a URL, and name the model if it is on the hub."""
    found = _ADDRESS.match(model)
    if found is None:
        return
    hub = _ON_HUB.match(model)
    if hub is None:
        advice = "download it, and give the path of the file or directory"
    elif hub["file"]:
        advice = f"give its name on the hub, 'hf:{hub['repo']}/{hub['file']}'"
    else:
        advice = f"give its name on the hub, '{hub['repo']}'"
    raise ModelFormatError(f"{short(model)}: a model is no URL; {advice}")


def _exists(path: str | Path) -> bool:
    try:
        return os.path.exists(path)
    except ValueError:  # a null byte; or, on some systems, a lone surrogate
        return False
