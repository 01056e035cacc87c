from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pybatcher.errors import ModelFormatError
from pybatcher.loading.safetensors.checkpoint import map_checkpoint, weight_files

A = {"a": np.full(2, 1.0, np.float32)}
B = {"b": np.full(3, 2.0, np.float32)}


def index(directory: Path, weight_map: Any) -> None:
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 20}, "weight_map": weight_map}))


def test_one_file(tmp_path: Path) -> None:
    save_file(A, tmp_path / "model.safetensors")
    assert map_checkpoint(weight_files(tmp_path))["a"].array.tolist() == [1.0, 1.0]


def test_many_files(tmp_path: Path) -> None:
    save_file(A, tmp_path / "one.safetensors")
    save_file(B, tmp_path / "two.safetensors")
    index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    assert map_checkpoint(weight_files(tmp_path)).keys() == {"a", "b"}


def test_files_may_be_links_out_of_the_directory(tmp_path: Path) -> None:
    # As in the cache of huggingface_hub, where a snapshot is made of links to blobs.
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    save_file(A, tmp_path / "blobs" / "0123")
    (tmp_path / "snapshot" / "one.safetensors").symlink_to(tmp_path / "blobs" / "0123")
    index(tmp_path / "snapshot", {"a": "one.safetensors"})
    assert map_checkpoint(weight_files(tmp_path / "snapshot")).keys() == {"a"}


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/etc/secret.safetensors",
        "sub/one.safetensors",
        "..",
        "",
        "..\\secret.safetensors",
        "C:secret.safetensors",
        "one.safetensors\0",
        "pytorch_model.bin",
        5,
        None,
        ["one.safetensors"],
    ],
)
def test_an_index_names_plain_files_only(name: object, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    save_file(A, tmp_path / "secret.safetensors")
    index(directory, {"a": name})
    with pytest.raises(ModelFormatError, match=r"weight_map puts tensor 'a' in .*same directory"):
        map_checkpoint(weight_files(directory))


@pytest.mark.parametrize("weight_map", [None, [], {}, "one.safetensors", 5])
def test_an_index_without_a_map(weight_map: object, tmp_path: Path) -> None:
    index(tmp_path, weight_map)
    with pytest.raises(ModelFormatError, match=r"index\.json: weight_map is"):
        map_checkpoint(weight_files(tmp_path))


def test_an_index_of_a_missing_file(tmp_path: Path) -> None:
    index(tmp_path, {"a": "one.safetensors"})
    with pytest.raises(ModelFormatError, match=r"one\.safetensors: no such file"):
        map_checkpoint(weight_files(tmp_path))


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    save_file(A, tmp_path / "one.safetensors")
    save_file(A | B, tmp_path / "two.safetensors")
    index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    with pytest.raises(ModelFormatError, match=r"two.*'a': is in .*one.*'a' too"):
        map_checkpoint(weight_files(tmp_path))


def test_no_safetensors_at_all(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelFormatError, match=r"no model\.safetensors and no .*index\.json"):
        map_checkpoint(weight_files(tmp_path))
