"""Files and directories that are no models, as users give them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from gguf_files import pair, raw_gguf, text

from pybatcher.errors import ModelFormatError
from pybatcher.loading import open_model
from pybatcher.models import tiny_path

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
PAGE = b"\n<!DOCTYPE html><html><head><title>Log in</title></head></html>"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_path(), tmp_path / "model"))


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "config.json", "tokenizer_config.json"]
)
@pytest.mark.parametrize(
    ("content", "said"),
    [(POINTER, "pointer of Git LFS.*git lfs pull"), (PAGE, "web page.*/resolve/")],
)
def test_a_stand_in_for_a_file(model: Path, name: str, content: bytes, said: str) -> None:
    (model / name).write_bytes(content)
    with pytest.raises(ModelFormatError, match=rf"{name}: is a {said}"):
        open_model(model)


@pytest.mark.parametrize("name", ["m.gguf", "m.bin", "m"])
@pytest.mark.parametrize(("content", "said"), [(POINTER, "pointer of Git LFS"), (PAGE, "web page")])
def test_a_stand_in_given_as_a_model(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelFormatError, match=f"{name}: is a {said}"):
        open_model(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.safetensors", "is one file of a model, which is given as its directory: '{}'"),
        ("config.json", "is one file of a model, which is given as its directory: '{}'"),
        ("tokenizer.model", "is one file of a model"),
        ("pytorch_model.bin", "may be a pickle"),
        ("model.PT", "may be a pickle"),
        ("model.tar.gz", "is an archive; unpack it"),
        ("model.onnx", "is a file of ONNX"),
        ("notes.txt", "is no GGUF file; a model is a Hugging Face directory"),
    ],
)
def test_a_file_of_another_kind(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_bytes(b"0123")
    with pytest.raises(ModelFormatError) as error:
        open_model(tmp_path / name)
    assert str(error.value).startswith(f"{tmp_path / name}: {said.format(tmp_path)}")


@pytest.mark.parametrize("base", ["meta-llama/Llama-3.2-1B", None])
def test_a_lora_adapter(tmp_path: Path, base: str | None) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    of_base = f" of '{base}'" if base else ""
    with pytest.raises(ModelFormatError, match=f"is a LoRA adapter{of_base}, which is not read"):
        open_model(tmp_path)


def test_a_model_beside_an_adapter_is_opened(model: Path) -> None:
    (model / "adapter_config.json").write_text("{}")
    assert open_model(model).name == "model"


def test_other_directories(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ModelFormatError, match=rf"below it that has one: '{model}'"):
        open_model(tmp_path)
    (tmp_path / "model_index.json").write_text("{}")
    with pytest.raises(ModelFormatError, match="is a pipeline of diffusers"):
        open_model(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("general.type", "adapter", "is a LoRA adapter"),
        ("general.type", "mmproj", "is the vision tower of a model"),
        ("general.architecture", "clip", "is the vision tower of a model"),
    ],
)
def test_a_gguf_file_that_is_no_model(tmp_path: Path, key: str, value: str, said: str) -> None:
    (tmp_path / "m.gguf").write_bytes(raw_gguf([pair(key, 8, text(value))], []))
    with pytest.raises(ModelFormatError, match=said):
        open_model(tmp_path / "m.gguf")
