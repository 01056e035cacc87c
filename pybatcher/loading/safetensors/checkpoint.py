"""Find and map the safetensors files of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...errors import ModelFormatError
from ..checkpoints.fields import shown
from ..checkpoints.json_file import read_fields
from ..checkpoints.model_files import is_file
from ..checkpoints.tensors import Tensor
from ..convert.mxfp4 import with_mxfp4
from .safetensors_file import map_tensors

__all__ = ["map_checkpoint", "weight_files"]

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def weight_files(directory: Path) -> list[Path]:
    """List the directory's weight files.

    `model.safetensors`, or the files that `model.safetensors.index.json` names.
    Raises ModelFormatError if there is neither, or the index names a file that
    is not in the directory itself.
    """
    index = directory / _INDEX
    if is_file(directory / _SINGLE):
        return [directory / _SINGLE]
    if is_file(index):
        return [directory / file for file in _read_file_names(index)]
    raise ModelFormatError(
        f"{directory}: no {_SINGLE} and no {_INDEX}; weights are read from "
        "safetensors files only (save_pretrained writes them)"
    )


def map_checkpoint(files: Iterable[Path]) -> dict[str, Tensor]:
    """Map the tensors of all files, without reading weights; return them by their names.

    Blocks and scales of MXFP4 become one tensor, which has the name of the blocks. Raises
    ModelFormatError if a file is missing or damaged, or if two files have the same tensor.
    """
    tensors: dict[str, Tensor] = {}
    for file in files:
        for name, tensor in map_tensors(file).items():
            if name in tensors:
                raise ModelFormatError(f"{tensor.source}: is in {tensors[name].source} too")
            tensors[name] = tensor
    return with_mxfp4(tensors)


def _read_file_names(index: Path) -> list[str]:
    """Return the sorted file names of the index, each checked to be a plain name."""
    weight_map = read_fields(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFormatError(
            f"{index}: weight_map is {shown(weight_map)}; expected an object that is not empty"
        )
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _is_plain_name(file):
            raise ModelFormatError(
                f"{index}: weight_map puts tensor {shown(name)} in {shown(file)}; "
                "expected the name of a .safetensors file in the same directory"
            )
    return sorted(set(weight_map.values()))


def _is_plain_name(file: str) -> bool:
    if not file.endswith(".safetensors") or not file.isprintable():
        return False
    return not any(mark in file for mark in ("/", "\\", ":"))
