from __future__ import annotations

import os
from pathlib import Path

import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.json_file import parse_json, read_bytes, read_fields, read_text


def test_an_object(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": {"b": [1, 2.5, null, "é"]}}', encoding="utf-8")
    fields = read_fields(path)
    assert fields.get("a") == {"b": [1, 2.5, None, "é"]}
    assert fields.source == str(path)
    assert read_text(path).endswith("}}")
    assert parse_json(rb'{"a": "\ud83E\uDD8A"}', "pairs").popitem() == ("a", "🦊")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a": 1,}', "not valid JSON"),
        (b"[1]", r"found \[1\]; expected a JSON object"),
        (b"5", "found 5; expected a JSON object"),
        (b"null", "found None"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": 1, "b": 2, "a": 1}', "'a' appears twice"),
        (b'{"x": {"a": 1, "a": 2}}', "'a' appears twice"),
        (b'{"a": "\xff"}', "not valid JSON.*utf-8"),
        (rb'{"a": {"b": ["\uD800"]}}', "not valid JSON.*surrogates not allowed"),
        (rb'{"\udfff": 1}', "not valid JSON.*surrogates not allowed"),
        (b'\xef\xbb\xbf{"a": 1}', "not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON.*4300"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[" * 1_000_000, "nested too deeply"),
    ],
)
def test_not_a_valid_object(data: bytes, said: str) -> None:
    with pytest.raises(ModelFormatError, match=f"^some file: .*{said}"):
        parse_json(data, "some file")


def test_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    for name in ("absent", "pipe", ".", "\0", "x" * 5000):
        with pytest.raises(ModelFormatError, match=r"no such file|cannot be read"):
            read_bytes(tmp_path / name)


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_bytes(b"x" * 101)
    assert len(read_bytes(path, 101)) == 101
    with pytest.raises(ModelFormatError, match="101 bytes; expected at most 100"):
        read_bytes(path, 100)


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "template"
    path.write_bytes(b"a\xff")
    with pytest.raises(ModelFormatError, match="not UTF-8"):
        read_text(path)
