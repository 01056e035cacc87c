"""Read how a checkpoint embeds texts from the files of the sentence-transformers library.

`modules.json` lists what comes after the transformer: pooling, then perhaps normalisation.
https://sbert.net/docs/sentence_transformer/usage/custom_models.html
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from ..errors import ModelFormatError
from ..params.embedding_defaults import EmbeddingDefaults
from .fields import Fields, shown
from .json_file import read_fields, read_list

__all__ = ["read_embedding_defaults"]

_MODES = {"lasttoken": "last", "mean": "mean"}
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}


def read_embedding_defaults(directory: Path) -> EmbeddingDefaults:
    """Return what the directory's `modules.json` says; without that file, the defaults.

    Raises ModelFormatError for a damaged file, and for a module or a kind of pooling that
    the engine does not have.
    """
    path = directory / "modules.json"
    if not path.is_file():
        return EmbeddingDefaults()
    mode, normalised = "", False
    for item in read_list(path):
        if not isinstance(item, dict):
            raise ModelFormatError(f"{path}: found {shown(item)}; expected a module, an object")
        module = Fields(item, str(path))
        kind = module.text("type").rpartition(".")[2]
        if kind == "Pooling":
            mode = _read_mode(read_fields(_folder(directory, module) / "config.json"))
        elif kind == "Normalize":
            normalised = True
        elif kind != "Transformer":
            raise module.error("type", "that of a Transformer, a Pooling or a Normalize module")
    if mode not in _MODES:
        expected = " or ".join(map(repr, _MODES))
        raise ModelFormatError(f"{path}: texts are pooled by {shown(mode)}; expected {expected}")
    return EmbeddingDefaults("last" if mode == "lasttoken" else "mean", normalised)


def _folder(directory: Path, module: Fields) -> Path:
    """Return the module's folder, which has to be in the directory."""
    name = PurePosixPath(module.text("path"))
    if name.is_absolute() or ".." in name.parts or len(name.parts) != 1:
        raise module.error("path", "the name of a folder in the same directory")
    return directory / name


def _read_mode(pooling: Fields) -> str:
    """Return the kind of pooling, by its name or by one flag for each kind."""
    if "pooling_mode" in pooling:
        mode: str = pooling.text("pooling_mode")
        return mode
    found = [mode for name, mode in _OLD_MODES.items() if pooling.boolean(name, False)]
    return "+".join(found)
