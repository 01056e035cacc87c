"""`open_model`: open a downloaded Hugging Face directory or GGUF file."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import ModelFormatError
from ..models.hub import find_model, matching, name_of
from .checkpoints.blueprint import EMBEDDING
from .checkpoints.fingerprint import fingerprint
from .checkpoints.json_file import read_fields
from .checkpoints.loaded_model import LoadedModel
from .checkpoints.tensors import Tensor
from .families import read_blueprint
from .gguf.file import is_gguf
from .gguf.model import open_gguf
from .safetensors.checkpoint import map_checkpoint, weight_files
from .safetensors.quantised import read_scheme, with_matrices
from .safetensors.sentence_transformers import lowers_texts, read_embedding_defaults
from .tokenizers.tokenizer_files import lower_texts, read_tokenizer

__all__ = ["SHIPPED_MODEL", "open_model"]

SHIPPED_MODEL = Path(__file__).resolve().parent.parent / "models" / "tiny"


def open_model(
    path: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> LoadedModel:
    """Open a model directory, a GGUF file, or a model of the Hugging Face hub.

    path: the path, or a name on the hub; None: the model that ships with pybatcher.
    progress: a function that is called during a download with the bytes so far and the total.

    Maps the weights without reading them, so that the time does not depend on their size. Raises
    ModelFormatError, which names the file, the field or tensor, its value and the expected one.
    """
    directory = SHIPPED_MODEL if path is None else find_model(path, progress)
    if is_gguf(directory):
        return open_gguf(directory)
    if not _is_directory(directory):
        raise ModelFormatError(
            f"{str(directory)!r}: no such directory or GGUF file; a model is given as the path of "
            "a Hugging Face directory (config.json, *.safetensors, tokenizer.json) or of a .gguf, "
            "or as its name on the hub, 'org/name'"
        )
    ggufs = sorted(file.name for file in directory.glob("*.gguf"))
    if ggufs and not (directory / "config.json").is_file():
        models = matching(ggufs, None)
        if len(models) == 1:
            return open_gguf(directory / models[0])
        raise ModelFormatError(
            f"{directory}: no config.json in it; name one of its GGUF files: "
            f"{directory / (models or ggufs)[0]}, say"
        )
    fields = read_fields(directory / "config.json")
    scheme = read_scheme(fields)
    blueprint = read_blueprint(fields.without("quantization_config"))
    tokenizer = read_tokenizer(directory, fields)
    if lowers_texts(directory):
        lower_texts(tokenizer)
    files = weight_files(directory)
    identity = fingerprint(files)
    if scheme is not None and identity:  # a scheme changes the weights of the same files
        reading = json.dumps(fields.get("quantization_config"), sort_keys=True)
        identity = hashlib.sha256(f"{identity}\n{reading}".encode()).hexdigest()
    available = map_checkpoint(files)
    if scheme is not None:
        available = with_matrices(available, scheme, str(directory))
    tensors = blueprint.fill(available, str(directory))
    return LoadedModel(
        config=blueprint.config_of(tensors),
        tensors=tensors,
        tokenizer=tokenizer,
        dtype=_dtype_of(tensors),
        name=name_of(directory.resolve()),
        path=directory,
        fingerprint=identity,
        embedding=read_embedding_defaults(directory, blueprint.config, blueprint.padding_token),
        generates=blueprint.generates,
    )


def _dtype_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the dtype of most quantised elements; without any, the dtype of the embedding."""
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        if tensor.stored is not None:
            sizes[tensor.stored.own_dtype] += math.prod(tensor.shape)
    return sizes.most_common(1)[0][0] if sizes else tensors[EMBEDDING].dtype


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # the path has a null byte or is too long
        return False
