from __future__ import annotations

import json
from pathlib import Path

import pytest

from pybatcher.models.hub.hub_cache import (
    Found,
    cache_folder,
    find_cached,
    is_offline,
    origin_of,
    write_ref,
)
from pybatcher.models.hub.hub_name import HubName, hub_name

COMMIT, OTHER = "a" * 40, "b" * 40


def named(text: str) -> HubName:
    name = hub_name(text)
    assert name is not None
    return name


def put(cache: Path, *files: str, commit: str = COMMIT, ref: str | None = "main") -> Path:
    """Put a repository a/b with these files into the cache; return its snapshot."""
    snapshot = cache / "models--a--b" / "snapshots" / commit
    for file in files:
        (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / file).write_bytes(b"x")
    if ref is not None:
        refs = cache / "models--a--b" / "refs"
        refs.mkdir(parents=True, exist_ok=True)
        (refs / ref).write_text(commit)
    return snapshot


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HF_HUB_CACHE": "/x", "HF_HOME": "/y"}, "/x"),
        ({"HUGGINGFACE_HUB_CACHE": "/z", "HF_HOME": "/y"}, "/z"),
        ({"HF_HOME": "/y", "XDG_CACHE_HOME": "/w"}, "/y/hub"),
        ({"XDG_CACHE_HOME": "/w"}, "/w/huggingface/hub"),
        ({}, str(Path.home() / ".cache/huggingface/hub")),
        ({"HF_HUB_CACHE": ""}, str(Path.home() / ".cache/huggingface/hub")),
    ],
)
def test_folder(environment: dict[str, str], folder: str) -> None:
    assert cache_folder(environment) == Path(folder)


def test_offline() -> None:
    assert is_offline({"HF_HUB_OFFLINE": "1"})
    assert is_offline({"TRANSFORMERS_OFFLINE": "true"})
    assert not is_offline({"HF_HUB_OFFLINE": "0"})
    assert not is_offline({})


def test_directories(tmp_path: Path) -> None:
    assert find_cached(named("a/b"), tmp_path) is None
    snapshot = put(tmp_path, "config.json")
    assert find_cached(named("a/b"), tmp_path) is None
    put(tmp_path, "model.safetensors")
    assert find_cached(named("a/b"), tmp_path) == Found(snapshot, False)
    put(tmp_path, "tokenizer.model")
    assert find_cached(named("a/b"), tmp_path) == Found(snapshot, True)
    (snapshot / "tokenizer.model").unlink()
    put(tmp_path, "tokenizer.json")
    assert find_cached(named("a/b"), tmp_path) == Found(snapshot, True)


def test_weights_in_several_files(tmp_path: Path) -> None:
    snapshot = put(tmp_path, "config.json", "tokenizer.json", "x-1.safetensors")
    index = snapshot / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}))
    assert find_cached(named("a/b"), tmp_path) is None
    put(tmp_path, "x-2.safetensors")
    assert find_cached(named("a/b"), tmp_path) == Found(snapshot, True)
    for damaged in ("{", "[" * 10**5, "{}", '{"weight_map": {"a": "../x.safetensors"}}'):
        index.write_text(damaged)
        assert find_cached(named("a/b"), tmp_path) is None


def test_a_link_to_what_is_gone_is_no_file(tmp_path: Path) -> None:
    snapshot = put(tmp_path, "config.json", "tokenizer.json")
    (snapshot / "model.safetensors").symlink_to("../../blobs/gone")
    assert find_cached(named("a/b"), tmp_path) is None


def test_revisions(tmp_path: Path) -> None:
    files = ("config.json", "tokenizer.json", "model.safetensors")
    old = put(tmp_path, *files, commit=OTHER, ref="v1")
    new = put(tmp_path, *files)
    for text, snapshot in {
        "a/b": new,
        "a/b@main": new,
        "a/b@v1": old,
        f"a/b@{OTHER}": old,
    }.items():
        assert find_cached(named(text), tmp_path) == Found(snapshot, True)
    assert find_cached(named("a/b@v2"), tmp_path) is None
    assert find_cached(named("a/b@" + "c" * 40), tmp_path) is None


@pytest.mark.parametrize("ref", ["", "..", "z" * 40, "\udcff"])
def test_a_damaged_ref(ref: str, tmp_path: Path) -> None:
    put(tmp_path, "config.json", "tokenizer.json", "model.safetensors")
    put(tmp_path, "config.json", "tokenizer.json", "model.safetensors", commit="..", ref=None)
    (tmp_path / "models--a--b/refs/main").write_text(ref, errors="surrogateescape")
    assert find_cached(named("a/b"), tmp_path) is None


def test_ggufs(tmp_path: Path) -> None:
    snapshot = put(tmp_path, "m-Q4_0.gguf", "mmproj.gguf")
    for text in ("a/b", "a/b:Q4_0", "hf:a/b/m-Q4_0.gguf"):
        assert find_cached(named(text), tmp_path) == Found(snapshot / "m-Q4_0.gguf", True)
    for text in ("a/b:Q8_0", "hf:a/b/m-Q8_0.gguf"):
        assert find_cached(named(text), tmp_path) is None
    put(tmp_path, "m-Q8_0.gguf")
    assert find_cached(named("a/b"), tmp_path) is None


def test_refs_are_written(tmp_path: Path) -> None:
    put(tmp_path, "config.json", "tokenizer.json", "model.safetensors", ref=None)
    write_ref(named("a/b"), tmp_path, COMMIT)
    write_ref(named("a/b@v1"), tmp_path, OTHER)
    write_ref(named(f"a/b@{COMMIT}"), tmp_path, COMMIT)
    refs = tmp_path / "models--a--b" / "refs"
    assert {ref.name: ref.read_text() for ref in refs.iterdir()} == {"main": COMMIT, "v1": OTHER}


def test_origins(tmp_path: Path) -> None:
    snapshot = put(tmp_path, "m.gguf")
    assert origin_of(snapshot) == origin_of(snapshot / "m.gguf") == f"a/b@{COMMIT}"
    assert origin_of(tmp_path) is None
    assert origin_of("models--a--b/snapshots/main") is None
