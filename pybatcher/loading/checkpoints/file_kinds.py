"""Recognise files and directories that are no models, to name the remedy in the error."""

from __future__ import annotations

import json
from pathlib import Path

from ...errors import ModelFormatError
from ...errors.checks import short

__all__ = ["HEAD_BYTES", "check_content", "other_directory", "other_file"]

HEAD_BYTES = 1024
"""Bytes that tell the kind of a file. By the specification of Git LFS, a pointer is shorter."""
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGES = (b"<!doctype html", b"<html")
_PICKLES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")
_ARCHIVES = (".7z", ".bz2", ".gz", ".tar", ".tgz", ".xz", ".zip", ".zst")
_OTHERS = {
    ".onnx": "ONNX",
    ".h5": "Keras",
    ".keras": "Keras",
    ".tflite": "TensorFlow Lite",
    ".mlmodel": "Core ML",
    ".ggml": "GGML, the format before GGUF",
    ".npz": "numpy",
    ".msgpack": "Flax",
}
_ADAPTER = "adapter_config.json"


def check_content(head: bytes, path: Path) -> None:
    """Raise ModelFormatError if a file has a Git LFS pointer or a web page instead of its content.

    head: the first HEAD_BYTES bytes of the file, or all if it has fewer.
    """
    if head.startswith(_LFS_POINTER) and len(head) < HEAD_BYTES:
        raise ModelFormatError(
            f"{path}: is a pointer of Git LFS, not the file itself; download the file with "
            "`git lfs pull` in the repository, or with `pybatcher pull org/name`"
        )
    if head.lstrip().lower().startswith(_PAGES):
        raise ModelFormatError(
            f"{path}: is a web page (HTML), not the file itself; download it again, from a "
            "/resolve/ address or with `pybatcher pull org/name`"
        )


def other_file(path: Path) -> ModelFormatError:
    """Return the error for an existing file that is no GGUF file. Raises that of its content."""
    try:
        with path.open("rb") as file:
            check_content(file.read(HEAD_BYTES), path)
    except OSError as error:
        return ModelFormatError(f"{path}: cannot be read: {error}")
    suffix, directory = path.suffix.lower(), path.absolute().parent
    if suffix in (".safetensors", ".json", ".model", ".jinja"):
        said = f"is one file of a model, which is given as its directory: {str(directory)!r}"
    elif suffix in _PICKLES:
        said = (
            "may be a pickle, which can run any code and is never loaded; save the model as "
            "safetensors (save_pretrained) and give its directory"
        )
    elif suffix in _ARCHIVES:
        said = "is an archive; unpack it and give the directory, or the .gguf file, that is in it"
    elif suffix in _OTHERS:
        said = f"is a file of {_OTHERS[suffix]}, which is not read; take safetensors or GGUF files"
    else:
        said = (
            "is no GGUF file; a model is a Hugging Face directory (config.json, *.safetensors, "
            "tokenizer.json) or a .gguf file"
        )
    return ModelFormatError(f"{path}: {said}")


def other_directory(directory: Path) -> ModelFormatError | None:
    """Return the error for a directory of another kind; None if its files say nothing."""
    adapter = directory / _ADAPTER
    if adapter.is_file() and not _has_weights(directory):
        base = _base_of(adapter)
        return ModelFormatError(
            f"{directory}: is a LoRA adapter{base}, which is not read; merge it into its base "
            "model with peft (merge_and_unload, then save_pretrained) and give that directory"
        )
    if (directory / "config.json").is_file():
        return None
    if (directory / "model_index.json").is_file():
        return ModelFormatError(
            f"{directory}: is a pipeline of diffusers, which is no language model"
        )
    inside = sorted(path.parent for path in directory.glob("*/config.json"))
    inside += sorted(path.parent for path in directory.glob("snapshots/*/config.json"))
    if inside:
        return ModelFormatError(
            f"{directory}: no config.json in it; give the directory below it that has one: "
            f"{str(inside[-1])!r}"
        )
    return None


def _has_weights(directory: Path) -> bool:
    return (directory / "config.json").is_file() and any(directory.glob("model*.safetensors"))


def _base_of(adapter: Path) -> str:
    try:
        base = json.loads(adapter.read_bytes()[: 2**20])["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return f" of {short(base)}" if isinstance(base, str) and base else ""
