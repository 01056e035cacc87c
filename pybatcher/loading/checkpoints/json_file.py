"""Read the JSON and text files of a checkpoint; none of them is trusted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ...errors import ModelFormatError
from .fields import Fields, shown
from .model_files import is_file, read_file

__all__ = ["parse_json", "read_bytes", "read_fields", "read_list", "read_optional", "read_text"]

_MAX_JSON_BYTES = 64 * 2**20


def read_bytes(path: Path, max_bytes: int = _MAX_JSON_BYTES) -> bytes:
    """Read a regular file.

    Raises ModelFormatError if it cannot be read or has more than `max_bytes` bytes.
    """
    return read_file(path, max_bytes)


def read_text(path: Path, max_bytes: int = _MAX_JSON_BYTES) -> str:
    """Read a UTF-8 file of at most `max_bytes` bytes. Raises ModelFormatError."""
    try:
        return read_bytes(path, max_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFormatError(f"{path}: not UTF-8: {error}") from error


def read_fields(path: Path) -> Fields:
    """Read a file that holds one JSON object. Raises ModelFormatError."""
    return Fields(parse_json(read_bytes(path), str(path)), str(path))


def read_optional(path: Path) -> Fields:
    """Read a file that holds one JSON object; an absent file has no fields."""
    return read_fields(path) if is_file(path) else Fields({}, str(path))


def parse_json(data: bytes, source: str) -> dict[str, Any]:
    """Parse one JSON object strictly: UTF-8, no lone surrogates, no duplicate names, no NaN.

    source: names the data in the messages of ModelFormatError.
    """
    value = _parse(data, source)
    if not isinstance(value, dict):
        raise ModelFormatError(f"{source}: found {shown(value)}; expected a JSON object")
    return value


def read_list(path: Path) -> list[Any]:
    """Read a file that holds one JSON list. Raises ModelFormatError."""
    value = _parse(read_bytes(path), str(path))
    if not isinstance(value, list):
        raise ModelFormatError(f"{path}: found {shown(value)}; expected a JSON list")
    return value


def _parse(data: bytes, source: str) -> Any:
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
        )
        if b"\\ud" in data.lower():  # escapes may spell half of a character
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except RecursionError as error:
        raise ModelFormatError(f"{source}: JSON nested too deeply") from error
    except ValueError as error:
        raise ModelFormatError(f"{source}: not valid JSON: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise ValueError(f"field {shown(counts.most_common(1)[0][0])} appears twice")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
