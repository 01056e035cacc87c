"""Read a checkpoint's defaults for embedding texts from sentence-transformers' files.

`modules.json` lists the modules after the transformer: pooling, and optionally dense layers and
normalisation. https://sbert.net/docs/sentence_transformer/usage/custom_models.html
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Literal

from ...errors import ModelFormatError
from ...params.embedding_defaults import EmbeddingDefaults
from ...params.embedding_head import DenseLayer, EmbeddingHead
from ..checkpoints.fields import Fields, shown
from ..checkpoints.json_file import read_fields, read_list
from ..checkpoints.limits import MAX_WIDTH
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.tensors import TensorRule, as_f32, gather
from .safetensors_file import map_tensors

__all__ = ["read_embedding_defaults"]

_MODES: dict[str, Literal["last", "mean", "cls"]] = {
    "lasttoken": "last",
    "mean": "mean",
    "cls": "cls",
}
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_MOST = {"Transformer": 1, "Pooling": 1, "Dense": 8, "Normalize": 1}
"""The maximum number of modules of each kind, in the order in which kinds may follow."""
_ORDER = (*_MOST,)
_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": False,
    "torch.nn.modules.activation.Tanh": True,
}


def read_embedding_defaults(directory: Path, config: ModelConfig) -> EmbeddingDefaults:
    """Return the defaults in the directory's `modules.json`, or, without that file, the model's.

    Raises ModelFormatError for a damaged file, and for an unsupported module or kind of pooling.
    """
    path = directory / "modules.json"
    if not path.is_file():
        return EmbeddingDefaults.of_model(config.causal)
    mode, normalised, before = "", False, "Transformer"
    kinds: Counter[str] = Counter()
    layers: list[DenseLayer] = []
    width = config.hidden_size
    for item in read_list(path):
        if not isinstance(item, dict):
            raise ModelFormatError(f"{path}: found {shown(item)}; expected a module, an object")
        module = Fields(item, str(path))
        kind = module.text("type").rpartition(".")[2]
        if kind not in _ORDER:
            wanted = "that of a Transformer, a Pooling, a Dense or a Normalize module"
            raise module.error("type", wanted)
        if _ORDER.index(kind) < _ORDER.index(before):
            raise module.error("type", f"no {kind} after a {before} module")
        kinds[kind] += 1
        if kinds[kind] > _MOST[kind]:
            raise module.error("type", f"at most {_MOST[kind]} {kind} modules")
        before = kind
        if kind == "Pooling":
            mode = _read_mode(read_fields(_folder(directory, module) / "config.json"))
        elif kind == "Dense":
            layers.append(_read_dense(_folder(directory, module), width))
            width = len(layers[-1].weight)
        elif kind == "Normalize":
            normalised = True
    if mode not in _MODES:
        expected = " or ".join(map(repr, _MODES))
        raise ModelFormatError(f"{path}: texts are pooled by {shown(mode)}; expected {expected}")
    return EmbeddingDefaults(_MODES[mode], normalised, EmbeddingHead(layers) if layers else None)


def _folder(directory: Path, module: Fields) -> Path:
    """Return the module's folder. Raises ModelFormatError if it is outside of `directory`."""
    name = PurePosixPath(module.text("path"))
    is_plain = str(name).isprintable() and len(name.parts) == 1
    if not is_plain or name.is_absolute() or ".." in name.parts:
        raise module.error("path", "the name of a folder in the same directory")
    return directory / name


def _read_mode(pooling: Fields) -> str:
    """Return the kind of pooling, by its name or by one flag for each kind."""
    if "pooling_mode" in pooling:
        mode: str = pooling.text("pooling_mode")
        return mode
    found = [mode for name, mode in _OLD_MODES.items() if pooling.boolean(name, False)]
    return "+".join(found)


def _read_dense(folder: Path, n_in: int) -> DenseLayer:
    """Return a copy of the layer in `folder`. n_in: the width of its input."""
    fields = read_fields(folder / "config.json")
    fields.refuse_unless("in_features", n_in)
    n_out = fields.integer("out_features", 1, MAX_WIDTH)
    activation = fields.text("activation_function", next(iter(_ACTIVATIONS)))
    if activation not in _ACTIVATIONS:
        raise fields.error("activation_function", " or ".join(map(repr, _ACTIVATIONS)))
    rules = [TensorRule(name="weight", source="linear.weight", shape=(n_out, n_in))]
    if fields.boolean("bias", True):
        rules.append(TensorRule(name="bias", source="linear.bias", shape=(n_out,)))
    path = folder / "model.safetensors"
    if not path.is_file():
        raise ModelFormatError(f"{path}: no such file; weights are read from safetensors only")
    tensors = gather(rules, map_tensors(path), str(path))
    return DenseLayer(
        as_f32(tensors["weight"]),
        as_f32(tensors["bias"]) if "bias" in tensors else None,
        _ACTIVATIONS[activation],
    )
