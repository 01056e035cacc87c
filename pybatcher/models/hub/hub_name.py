"""`HubName`: parses names of models on the hub, and distinguishes them from paths."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...errors import ModelFormatError
from ...errors.checks import short

__all__ = ["HubName", "hub_name", "is_plain_path"]

_PREFIX = "hf:"
_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_NAME = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._-]{{0,127}}))?"
    r"(?::(?P<kind>[A-Za-z0-9][A-Za-z0-9._-]{0,63})|/(?P<file>[^@:]{1,512}))?"
)
_FILE_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9 ._+()-]{0,254}")
_LONGEST = 1024  # characters of a name
_FORMS = "'org/name', 'org/name@revision', 'org/name:Q4_K_M' or 'hf:org/name/file.gguf'"


@dataclass(frozen=True, slots=True)
class HubName:
    """The name of a model on the hub.

    repo: "org/name".
    revision: a branch, a tag or a commit; None: the branch "main".
    file: path of one GGUF file in the repository; None if the name has none.
    kind: part of the name of a GGUF file, such as "Q4_K_M"; None if the name has none.
    text: the name as it was given, for messages.
    """

    repo: str
    revision: str | None
    file: str | None
    kind: str | None
    text: str

    @property
    def folder(self) -> str:
        """The name of the repository's folder in the cache."""
        return "models--" + self.repo.replace("/", "--")


def hub_name(text: str) -> HubName | None:
    """Return the parsed name; None for a text that can only be a path.

    Raises ModelFormatError for a text that begins with "hf:" and is no name.
    """
    explicit = text.startswith(_PREFIX)
    found = _NAME.fullmatch(text.removeprefix(_PREFIX)) if len(text) <= _LONGEST else None
    if found is not None and _is_name(found, explicit):
        return HubName(found["repo"], found["revision"], found["file"], found["kind"], text)
    if explicit:
        raise ModelFormatError(f"{short(text)} is no name of a model on the hub; one is {_FORMS}")
    return None


def is_plain_path(file: str) -> bool:
    """True for a path that stays in its folder, with names without special characters."""
    return all(_FILE_PART.fullmatch(part) and ".." not in part for part in file.split("/"))


def _is_name(found: re.Match[str], explicit: bool) -> bool:
    """Apply the hub's rules for names, and the rules that distinguish a name from a path."""
    repo, file = found["repo"], found["file"]
    if any(mark in repo for mark in ("--", "..")) or repo.endswith((".git", ".ipynb")):
        return False
    if file is not None:
        return explicit and file.endswith(".gguf") and is_plain_path(file)
    return explicit or not repo.endswith((".gguf", ".safetensors", ".json"))
