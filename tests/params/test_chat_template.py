"""The option `chat_template`: Jinja source, or a file with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pybatcher import ConfigError
from pybatcher.params.chat_template import is_jinja, read_chat_template
from pybatcher.params.config import EngineConfig

SOURCE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"


def test_a_source_stays_as_it_is() -> None:
    class Text(str):
        def __str__(self) -> str:
            return "another"

    for source in (SOURCE, "{{ messages }}", " {% if a %}/etc/passwd{% endif %}"):
        assert is_jinja(source)
        assert read_chat_template(source) == source
        assert type(read_chat_template(Text(source))) is str
        assert read_chat_template(Text(source)) == source


def test_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "é.jinja"
    file.write_text(SOURCE + "日本", "utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for path in (file, str(file), "é.jinja", "./é.jinja", "~/é.jinja"):
        assert read_chat_template(path) == SOURCE + "日本"
        assert EngineConfig(chat_template=path).chat_template == SOURCE + "日本"
    assert EngineConfig(chat_template=None).chat_template is None


class Raising:
    def __fspath__(self) -> str:
        raise OSError("never")


ODD = [True, 0, 1.5, b"{{ x }}", bytearray(b"{{ x }}"), [], ["{{ x }}"], {}, object(), Raising()]


@pytest.mark.parametrize("value", ODD, ids=lambda one: type(one).__name__)
def test_odd_values_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^chat_template") as caught:
        EngineConfig(chat_template=value)
    assert caught.value.field == "chat_template"


@pytest.mark.parametrize("text", ["", "chatml", "a\nb", "a\0b", "\ud800", "{{ '\ud800' }}", "{"])
def test_a_text_that_is_no_template_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^chat_template") as caught:
        read_chat_template(text)
    assert caught.value.field == "chat_template"


def test_files_without_a_template_are_refused(tmp_path: Path) -> None:
    def refused(path: Path, why: str) -> None:
        with pytest.raises(ConfigError, match=why) as caught:
            read_chat_template(path)
        assert path.name in str(caught.value)

    def written(name: str, data: bytes) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    refused(tmp_path / "missing.jinja", "No such file")
    refused(tmp_path, "Is a directory|no regular file")
    refused(written("empty", b""), "has neither {{ nor {%")
    refused(written("plain", b"hello"), "has neither {{ nor {%")
    refused(written("latin", b"{{ '\xe9' }}"), "not UTF-8: .* at byte 4")
    refused(written("a.json", b'{"chat_template": "{{ x }}"}'), "no template; give the text of")
    refused(written("large", b"{{ x }}" + b" " * 2**20), "more than 1048576 bytes")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "no regular file")
