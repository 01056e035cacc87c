"""The hub's cache on this machine: snapshots of repositories, read without `huggingface_hub`.

Its layout is documented: models--ORG--NAME/refs/REVISION has a commit, snapshots/COMMIT the files.
    https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .hub_files import INDEX, TOKENIZERS, WEIGHTS, matching, names_in_index, parts_of
from .hub_name import HubName

__all__ = [
    "CachedModel",
    "Found",
    "bytes_of",
    "cache_folder",
    "find_cached",
    "is_offline",
    "list_models",
    "origin_of",
    "write_ref",
]

COMMIT = re.compile(r"[0-9a-f]{40}")
_MAX_INDEX = 64 * 2**20  # bytes
_TRUE = {"1", "ON", "YES", "TRUE"}


@dataclass(frozen=True, slots=True)
class Found:
    """A model in the cache.

    path: the path of the directory, or of the GGUF file.
    is_whole: False if a file that most models have is absent, and may have been lost.
    """

    path: Path
    is_whole: bool


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the cache.

    name: the name by which a batcher opens it. bytes: the size of its files. is_whole: False if
        files of its weights are absent.
    """

    name: str
    bytes: int
    is_whole: bool


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the cache, from the variables that `huggingface_hub` reads."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(variable):
            return Path(environment[variable]).expanduser().absolute()
    home = environment.get("HF_HOME")
    if not home:
        home = os.path.join(environment.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser().absolute() / "hub"


def is_offline(environment: Mapping[str, str]) -> bool:
    """True if a variable forbids downloads."""
    variables = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(environment.get(name, "").upper() in _TRUE for name in variables)


def find_cached(name: HubName, cache: Path) -> Found | None:
    """Return the model that a name stands for; None unless all its weights are in the cache."""
    folder = cache / name.folder
    try:
        commit = _commit(folder, name.revision)
        if commit is None:
            return None
        return _model(folder / "snapshots" / commit, name)
    except (OSError, ValueError, RecursionError):  # no access, or invalid JSON
        return None


def list_models(cache: Path) -> list[CachedModel]:
    """Return the models in the cache, by name: directories of safetensors, and GGUF files.

    Repositories of other kinds, such as data sets, are left out.
    """
    found: list[CachedModel] = []
    for snapshot in sorted(cache.glob("models--*/snapshots/*")):
        origin = origin_of(snapshot)
        if origin is None:
            continue
        repo, commit = origin.split("@")
        refs = snapshot.parent.parent / "refs"
        name = repo if _text_of(refs / "main") == commit else origin
        files = [path.relative_to(snapshot).as_posix() for path in _files_in(snapshot)]
        for model in matching([file for file in files if file.endswith(".gguf")], None):
            parts = [snapshot / part for part in parts_of(model)]
            there = [part for part in parts if part.is_file()]
            size = sum(map(bytes_of, there))
            found.append(CachedModel(f"hf:{repo}/{model}", size, len(there) == len(parts)))
        if "config.json" in files and any(file.endswith(".safetensors") for file in files):
            with suppress(OSError, ValueError, RecursionError):
                found.append(CachedModel(name, bytes_of(snapshot), _has_weights(snapshot)))
    return sorted(found, key=lambda model: model.name.removeprefix("hf:").lower())


def bytes_of(path: Path) -> int:
    """Return the size of a model's files: of a directory, or of a GGUF file with its other parts.

    Links are followed, and absent files count as 0.
    """
    files = _files_in(path) if path.is_dir() else [path.with_name(p) for p in parts_of(path.name)]
    total = 0
    for file in files:
        with suppress(OSError):
            total += file.stat().st_size
    return total


def _files_in(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _text_of(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return ""


def write_ref(name: HubName, cache: Path, commit: str) -> None:
    """Record the commit of the revision, as `huggingface_hub` does."""
    revision = name.revision or "main"
    if COMMIT.fullmatch(revision):
        return
    ref = cache / name.folder / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    unfinished = ref.with_name(f".{revision}.{os.getpid()}")
    unfinished.write_text(commit)
    unfinished.replace(ref)


def origin_of(path: str | os.PathLike[str]) -> str | None:
    """Return "org/name@commit" for a path within a snapshot of the cache, else None."""
    parts = Path(path).absolute().parts
    for place in range(len(parts) - 2):
        folder, snapshots, commit = parts[place : place + 3]
        if folder.startswith("models--") and snapshots == "snapshots" and COMMIT.fullmatch(commit):
            return f"{folder.removeprefix('models--').replace('--', '/')}@{commit}"
    return None


def _commit(folder: Path, revision: str | None) -> str | None:
    if revision is not None and COMMIT.fullmatch(revision):
        return revision
    commit = (folder / "refs" / (revision or "main")).read_text().strip()
    return commit if COMMIT.fullmatch(commit) else None


def _model(snapshot: Path, name: HubName) -> Found | None:
    if name.file is not None:
        return _gguf(snapshot, name.file)
    if name.kind is None and _has_weights(snapshot):
        return Found(snapshot, any((snapshot / file).is_file() for file in TOKENIZERS))
    files = [path for path in snapshot.rglob("*.gguf") if path.is_file()]
    inside = [path.relative_to(snapshot).as_posix() for path in files]
    chosen = matching(inside, name.kind)
    return _gguf(snapshot, chosen[0]) if len(chosen) == 1 else None


def _gguf(snapshot: Path, file: str) -> Found | None:
    """Return a GGUF file; None unless it and all other parts of its model are there."""
    is_whole = all((snapshot / part).is_file() for part in parts_of(file))
    return Found(snapshot / file, True) if is_whole else None


def _has_weights(snapshot: Path) -> bool:
    if not (snapshot / "config.json").is_file():
        return False
    index = snapshot / INDEX
    if (snapshot / WEIGHTS).is_file():
        return True
    if not index.is_file() or index.stat().st_size > _MAX_INDEX:
        return False
    names = names_in_index(json.loads(index.read_bytes()))
    return bool(names) and all((snapshot / name).is_file() for name in names)
