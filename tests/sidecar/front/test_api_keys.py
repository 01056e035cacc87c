"""The file of the keys: what is read of it, and whose eyes it must be closed to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pybatcher import ConfigError
from pybatcher.sidecar.front.api_keys import read_api_keys


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    made.touch(mode=0o600)
    return made


def test_one_key_a_line(file: Path) -> None:
    file.write_text("# the first\nsk-1\n\n  sk-2 \nsk-1\n#sk-3\nsk#4\r\n")
    assert read_api_keys(file) == ("sk-1", "sk-2", "sk#4")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "has no key"),
        (b"# none\n\n", "has no key"),
        (b"one\ntwo words\n", "line 2 of .* is no key"),
        ("schlüssel\n".encode(), "line 1 of .* is no key"),
        (b"a\0b\n", "line 1 of .* is no key"),
        (b"\xff\n", "no text in UTF-8"),
    ],
)
def test_what_is_wrong_is_said_and_no_key_is_shown(file: Path, data: bytes, why: str) -> None:
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=why) as caught:
        read_api_keys(file)
    assert str(file) in str(caught.value)
    assert "words" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o604, 0o601, 0o660])
def test_a_file_that_is_open_to_others_is_refused(file: Path, mode: int) -> None:
    file.write_text("sk-1\n")
    file.chmod(mode)
    with pytest.raises(ConfigError, match=f"mode is {mode:04o}.* chmod 600"):
        read_api_keys(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_group_of_another_users_file_may_read_it(file: Path) -> None:
    file.write_text("sk-1\n")
    os.chown(file, 65534, 65534)
    file.chmod(0o640)
    assert read_api_keys(file) == ("sk-1",)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="others can open"):
        read_api_keys(file)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(ConfigError, match=f"cannot read api_key_file '{path}': {why}"):
            read_api_keys(path)
