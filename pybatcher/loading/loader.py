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
from ..images import read_processor
from ..models.hub import find_model, matching, name_of
from .checkpoints.blueprint import EMBEDDING
from .checkpoints.file_kinds import other_directory, other_file
from .checkpoints.json_file import read_fields, read_optional
from .checkpoints.loaded_model import LoadedModel
from .checkpoints.model_files import Guard, ModelFiles, reading
from .checkpoints.tensors import Tensor
from .families import read_blueprint
from .gguf.file import is_gguf
from .gguf.model import open_gguf
from .safetensors.checkpoint import map_checkpoint, weight_files
from .safetensors.quantised import read_scheme, with_matrices
from .safetensors.sentence_transformers import lowers_texts, read_embedding_defaults
from .tokenizers.tokenizer_files import lower_texts, read_tokenizer

__all__ = ["SHIPPED_MODEL", "open_model"]

_TRIES = 20
SHIPPED_MODEL = Path(__file__).resolve().parent.parent / "models" / "tiny"


def open_model(
    path: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], object] | None = None,
    guard: Guard | None = None,
    *,
    reads: bool = True,
    vision: bool = True,
    mmproj: str | os.PathLike[str] | None = None,
) -> LoadedModel:
    """Open a model directory, a GGUF file, or a model of the Hugging Face hub.

    path: the path, or a name on the hub; None: the model that ships with pybatcher.
    progress: a function that is called during a download with the bytes so far and the total.
    guard: protects the reads of mapped files as long as the result exists.
    reads: False: only shapes and dtypes of the weights are used, and not their values.
    vision: False: the vision tower of a model that takes images is not loaded.
    mmproj: the file with the vision tower of a GGUF model, or its name on the hub; None: the file
        beside the model, if there is one.

    Maps the weights without reading them, so that the time does not depend on their size. Files
    that are replaced meanwhile are opened again, so that the result is of one version. Raises
    ModelFormatError, which names the file, the field or tensor, its value and the expected one.
    """
    found = SHIPPED_MODEL if path is None else find_model(path, progress)
    tower = find_model(mmproj, progress) if mmproj is not None and vision else None
    try:
        str(found).encode()
    except UnicodeEncodeError as error:  # the name of a model is a part of every answer
        raise ModelFormatError(
            f"{str(found)!r}: the path is not UTF-8; rename the directory or file"
        ) from error
    for tries_left in reversed(range(_TRIES)):
        files = ModelFiles(found if _is_directory(found) else found.parent, guard)
        try:
            with reading(files):
                model = _open(found, files, reads, vision, tower)
        except ModelFormatError:
            if files.are_current() or not tries_left:
                raise
        else:
            if files.are_current():
                return model
    raise ModelFormatError(
        f"{found}: its files were replaced each of the {_TRIES} times that they were opened: open "
        "it when all files are in place"
    )


def _open(
    directory: Path, files: ModelFiles, reads: bool, vision: bool, mmproj: Path | None
) -> LoadedModel:
    """Open the model at `directory`, or the GGUF file there, through `files`."""
    if is_gguf(directory):
        return open_gguf(directory, files, reads=reads, vision=vision, mmproj=mmproj)
    if not _is_directory(directory):
        if _is_file(directory):
            raise other_file(directory)
        raise ModelFormatError(
            f"{str(directory)!r}: no such directory or GGUF file; a model is given as the path of "
            "a Hugging Face directory (config.json, *.safetensors, tokenizer.json) or of a .gguf, "
            "or as its name on the hub, 'org/name'"
        )
    ggufs = sorted(file.name for file in directory.glob("*.gguf"))
    if ggufs and not (directory / "config.json").is_file():
        models = matching(ggufs, None)
        if len(models) == 1:
            path = directory / models[0]
            return open_gguf(path, files, reads=reads, vision=vision, mmproj=mmproj)
        raise ModelFormatError(
            f"{directory}: no config.json in it; name one of its GGUF files: "
            f"{directory / (models or ggufs)[0]}, say"
        )
    inner = directory / "0_Transformer"
    if not (directory / "config.json").is_file() and (inner / "config.json").is_file():
        raise ModelFormatError(
            f"{directory}: its model is in the folder 0_Transformer, which is not read: move the "
            'files from there into the folder above, and set the "path" of the Transformer to "" '
            "in modules.json"
        )
    if mmproj is not None:
        raise ModelFormatError(
            f"mmproj {mmproj}: is for a model in a GGUF file; {directory} has its vision tower in "
            "its safetensors files"
        )
    other = other_directory(directory)
    if other is not None:
        raise other
    fields = read_fields(directory / "config.json")
    scheme = read_scheme(fields)
    blueprint = read_blueprint(fields.without("quantization_config"))
    blueprint = blueprint if vision else blueprint.without_vision()
    tokenizer = read_tokenizer(directory, fields)
    if lowers_texts(directory):
        lower_texts(tokenizer)
    available = map_checkpoint(weight_files(directory))
    weights_fingerprint = files.fingerprint(weights_only=True)
    if scheme is not None:  # a scheme changes the weights of the same files
        scheme_text = json.dumps(fields.get("quantization_config"), sort_keys=True)
        identity = f"{weights_fingerprint}\n{scheme_text}"
        weights_fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        available = with_matrices(available, scheme, str(directory))
    blueprint = blueprint.fitted_to(available)
    tensors = blueprint.fill(available, str(directory), reads=reads)
    embedding = read_embedding_defaults(directory, blueprint.config, blueprint.padding_token)
    return LoadedModel(
        config=blueprint.config_of(tensors),
        tensors=tensors,
        tokenizer=tokenizer,
        dtype=_dtype_of(tensors),
        name=name_of(directory.resolve()),
        path=directory,
        fingerprint=files.fingerprint(),
        weights_fingerprint=weights_fingerprint,
        files=files,
        embedding=embedding,
        generates=blueprint.generates,
        vision=blueprint.vision,
        image_processor=None
        if blueprint.vision is None
        else read_processor(
            fields.text("model_type"), fields, lambda name: read_optional(directory / name)
        ),
    )


def _dtype_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the dtype of most quantised elements; without any, the dtype of the embedding."""
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        if tensor.stored is not None:
            sizes[tensor.stored.own_dtype] += math.prod(tensor.shape)
    return sizes.most_common(1)[0][0] if sizes else tensors[EMBEDDING].dtype


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # the path has a null byte or is too long
        return False
