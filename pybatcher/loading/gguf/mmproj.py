"""`open_mmproj`: open the GGUF file with the vision tower of a model, and `find_mmproj`."""

from __future__ import annotations

from pathlib import Path

from ...errors import ModelFormatError
from ...images import ImageProcessor, read_processor
from ...models.hub import chosen_mmproj, origin_of
from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields, shown
from ..checkpoints.tensors import Tensor, gather
from ..families import read_gguf_vision, takes_images
from ..parts.gguf_contents import GgufContents
from ..parts.gguf_vision import GgufVision, Mmproj, joined_frames
from .file import is_gguf, map_gguf

__all__ = ["find_mmproj", "is_tower", "open_mmproj"]

_OF_SOUNDS = ("a.", "mm.a.")
"""Prefixes of the tensors of a tower for sounds, which is not loaded."""


def find_mmproj(path: Path, architecture: str) -> Path | None:
    """Return the mmproj file of the GGUF model at `path`; None: there is none.

    architecture: that of the model. No file is looked for if models with it take no images.

    The file is in the model's folder or, in a repository of the hub's cache, in a folder above.
    """
    if not takes_images(architecture):
        return None
    folder = path.parent
    while True:
        try:
            names = [file.name for file in folder.iterdir() if file.suffix == ".gguf"]
        except OSError:
            names = []
        found = chosen_mmproj([*names, path.name], path.name)
        if found is not None:
            return folder / found
        if origin_of(folder.parent) is None:
            return None
        folder = folder.parent


def is_tower(metadata: Fields) -> bool:
    """Return True for the metadata of a file with a vision tower, which has no language model."""
    kind, architecture = metadata.get("general.type"), metadata.get("general.architecture")
    return bool(kind == "mmproj" or architecture == "clip")


def open_mmproj(
    path: Path, contents: GgufContents, blueprint: Blueprint, *, reads: bool
) -> tuple[Blueprint, dict[str, Tensor], ImageProcessor]:
    """Open the mmproj file at `path` of a GGUF model.

    contents, blueprint: of the model. reads: False: the values of weights are not used.

    Returns the blueprint of the model with the tower, the tower's weights, and the processor of its
    images. Raises ModelFormatError, which names the file, the key or tensor, its value and the
    expected one.
    """
    if not is_gguf(path):
        raise ModelFormatError(f"{path}: no GGUF file; expected the mmproj file of a model")
    file = map_gguf(path)
    if not is_tower(file.metadata):
        raise file.metadata.error("general.architecture", "'clip', which mmproj files have")
    if file.metadata.get("clip.has_vision_encoder") is not True:
        raise file.metadata.error("clip.has_vision_encoder", "true, as of a file for images")
    mmproj = Mmproj(file.metadata, joined_frames(file.tensors), contents)
    found = read_gguf_vision(mmproj, blueprint)
    _refuse_unknown_tensors(mmproj, found)
    weights = gather(found.blueprint.vision_rules, mmproj.tensors, str(path), reads=reads)
    no_fields = Fields({}, str(path))
    processor = read_processor(
        found.config.text("model_type"),
        found.config,
        lambda name: found.preprocessor if name == "preprocessor_config.json" else no_fields,
    )
    assert processor is not None
    tokens = contents.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and processor.image_token not in tokens:
        raise contents.metadata.error(
            "tokenizer.ggml.tokens",
            f"a list with {processor.image_token!r}, which stands for images of {path}",
        )
    return found.blueprint, weights, processor


def _refuse_unknown_tensors(mmproj: Mmproj, found: GgufVision) -> None:
    """Raise ModelFormatError for a tensor of the tower without a rule, which would be ignored."""
    known = {rule.source for rule in found.blueprint.vision_rules} | found.unused
    for name, tensor in mmproj.tensors.items():
        if name not in known and not name.startswith(_OF_SOUNDS):
            kind = shown(mmproj.metadata.get("clip.projector_type"))
            raise ModelFormatError(
                f"{tensor.source} has no place in a tower with the projector {kind}; "
                "expected only tensors that the metadata call for"
            )
