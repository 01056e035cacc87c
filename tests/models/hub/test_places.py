from __future__ import annotations

import re
from pathlib import Path

import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.models.hub import absolute_model, find_model, name_of


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)


def test_a_path_that_is_there_wins(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="'org/model': no such directory or GGUF file"):
        find_model("org/model")
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert find_model("org/model") == Path("org/model")


@pytest.mark.parametrize("path", ["./org/model", "/org/model", "x/y.gguf", "x/y/z", "\ud800/x"])
def test_a_path_is_never_looked_up(path: str) -> None:
    assert find_model(path) == Path(path)


def test_a_tilde_is_the_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert find_model("~/model") == tmp_path / "home/model"
    assert find_model(Path("~/model")) == tmp_path / "home/model"
    assert find_model("./~/model") == tmp_path / "home/model"
    (tmp_path / "~").mkdir()
    assert find_model("~") == Path("~")  # an existing path wins


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("https://huggingface.co/Qwen/Qwen3-0.6B", "'Qwen/Qwen3-0.6B'"),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/tree/main", "'Qwen/Qwen3-0.6B'"),
        ("https://hf.co/a/b/resolve/main/c/m.gguf?download=true", "'hf:a/b/c/m.gguf'"),
        ("https://huggingface.co/a/b/blob/main/m.gguf", "'hf:a/b/m.gguf'"),
        ("http://example.com/model.gguf", "download it"),
        ("s3://bucket/model", "download it"),
        ("file:///models/x", "download it"),
    ],
)
def test_an_address_is_no_model(address: str, advice: str, tmp_path: Path) -> None:
    assert absolute_model(address, tmp_path) == address
    with pytest.raises(ModelFormatError, match=f"is no URL; .*{re.escape(advice)}"):
        find_model(address)


def test_an_object_that_is_a_path_is_never_looked_up() -> None:
    assert find_model(Path("org/model")) == Path("org/model")


def test_hostile_names() -> None:
    for name in ("a\0b", "../..", "a b", "x" * 10**6, "a/" * 5 * 10**5, "\ud800"):
        assert find_model(name) == Path(name)


def test_absolute(tmp_path: Path) -> None:
    assert absolute_model("org/model", tmp_path) == "org/model"
    assert absolute_model("hf:org/model/x.gguf", tmp_path) == "hf:org/model/x.gguf"
    assert absolute_model("model", tmp_path) == str(tmp_path / "model")
    assert absolute_model("./org/model", tmp_path) == str(tmp_path / "org/model")
    assert absolute_model("~/x", tmp_path) == str(Path.home() / "x")
    (tmp_path / "org/model").mkdir(parents=True)
    assert absolute_model("org/model", tmp_path) == str(tmp_path / "org/model")
    with pytest.raises(ModelFormatError, match="is no name of a model on the hub"):
        absolute_model("hf:x", tmp_path)


def test_names_for_people() -> None:
    assert name_of(Path("/x/models--Qwen--Qwen3-0.6B/snapshots/" + "a" * 40)) == "Qwen3-0.6B"
    assert name_of(Path("/x/model")) == "model"
