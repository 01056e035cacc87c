"""GGUF files with a vision tower (mmproj): their keys, and their names of tensors.

A family translates the keys to the fields of config.json and preprocessor_config.json, so that the
tower and the image processor are read as those of a checkpoint in safetensors files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import ModelFormatError
from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.tensors import Tensor, TensorRule
from .gguf_contents import GgufContents
from .gguf_keys import ArchitectureKeys

__all__ = ["GgufVision", "Mmproj", "joined_frames", "read_image_settings", "tower_rules"]

_PATCH = "v.patch_embd.weight"
_SECOND_FRAME = f"{_PATCH}.1"
_OF_TOWER = {
    "patch": "v.patch_embd",
    "positions": "v.position_embd",
    "pre_norm": "v.pre_ln",
    "final_norm": "v.post_ln",
}
_OF_LAYER = {
    "attn_norm": "ln1",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_out",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "attn_post_norm": "attn_post_norm",
    "mlp_norm": "ln2",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "mlp_post_norm": "ffn_post_norm",
}
_STATISTICS = 1e9


@dataclass(frozen=True, slots=True)
class Mmproj:
    """A GGUF file with a vision tower, and the file of its model.

    metadata: values by key. tensors: by their names in the file; a convolution over two frames is
        one tensor, (outputs, channels, frames, rows, columns).
    text: the file of the language model.
    """

    metadata: Fields
    tensors: Mapping[str, Tensor]
    text: GgufContents

    @property
    def keys(self) -> ArchitectureKeys:
        """The keys of the vision tower."""
        return ArchitectureKeys(self.metadata, "clip.vision")

    def translated(self, fields: Mapping[str, Any], keys: Mapping[str, str]) -> Fields:
        """Return fields of config.json, which messages call by the names of the file's keys.

        fields: fields that no key of their own has. keys: for each other field, its key without
            "clip.vision."; a field is absent if the key is.
        """
        found = {name: self.keys.get(key) for name, key in keys.items()}
        values = {name: value for name, value in found.items() if value is not None}
        named = {name: self.keys.prefix + key for name, key in keys.items()}
        return Fields({**values, **fields}, self.metadata.source, named)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufVision:
    """A vision tower and an image processor that a family read from an mmproj file.

    blueprint: the blueprint of the model with its tower; the sources of `vision_rules` are names of
        tensors of the mmproj file.
    config, preprocessor: the fields of config.json and preprocessor_config.json, for
        `images.read_processor`.
    unused: names of tensors that the file may have and that no layer needs.
    """

    blueprint: Blueprint
    config: Fields
    preprocessor: Fields
    unused: frozenset[str] = frozenset()


def read_image_settings(mmproj: Mmproj, **fields: Any) -> Fields:
    """Return the fields of preprocessor_config.json: mean, deviation, and other `fields`.

    Raises ModelFormatError for numbers that cannot be a mean or deviation.
    """
    found = {}
    for name, low in (("image_mean", -_STATISTICS), ("image_std", 1e-9)):
        values = mmproj.keys.get(name)
        is_whole = isinstance(values, np.ndarray) and values.dtype.kind == "f" and len(values) == 3
        if not is_whole or not ((values >= low) & (values <= _STATISTICS)).all():
            raise mmproj.keys.error(name, "three numbers, of red, green and blue")
        found[name] = [float(value) for value in values]
    return Fields({**found, **fields}, mmproj.metadata.source)


def joined_frames(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors, with the convolutions over the two frames of a patch as one tensor.

    Raises ModelFormatError if the two do not belong together.
    """
    joined = dict(tensors)
    second = joined.pop(_SECOND_FRAME, None)
    if second is None:
        return joined
    first = tensors.get(_PATCH)
    if first is None or (first.dtype, first.shape) != (second.dtype, second.shape):
        expected = "no such tensor" if first is None else f"{first.dtype} {list(first.shape)}"
        raise ModelFormatError(
            f"{second.source}: found {second.dtype} {list(second.shape)}; expected {expected}, "
            f"as of {_PATCH}"
        )
    if len(first.shape) > 1:
        array = np.stack([first.array, second.array], axis=2 if len(first.shape) > 2 else 1)
        joined[_PATCH] = replace(first, array=array, mapped=False)
    return joined


def tower_rules(
    mmproj: Mmproj, blueprint: Blueprint, projector: Mapping[str, str]
) -> Iterator[TensorRule]:
    """Yield the rules of a tower with the mmproj file's names as sources.

    projector: the file's names of the parts of projectors, by canonical names without "tower.":
        {"projector.linears.0": "mm.0"}.

    The file has q, k and v in one matrix or in three. Old files have the names of the two matrices
    of an MLP exchanged.
    """
    assert blueprint.vision is not None
    layers = blueprint.vision.layers
    query, key = layers.n_heads * layers.head_dim, layers.n_kv_heads * layers.head_dim
    rows = {"q": (0, query), "k": (query, query + key), "v": (query + key, query + 2 * key)}
    for rule in blueprint.vision_rules:
        stem, _, kind = rule.name.removeprefix("tower.").rpartition(".")
        found = re.fullmatch(r"layers\.(\d+)\.(\w+)", stem)
        if found is None:
            name = projector.get(stem) or _OF_TOWER[stem]
            yield replace(rule, source=f"{name}.{kind}")
            continue
        block, part = f"v.blk.{found[1]}.", found[2]
        if part in rows:
            begin, end = rows[part]
            of_row = rule.shape[1:]
            fused = f"{block}attn_qkv.{kind}"
            if fused in mmproj.tensors:
                shape = (query + 2 * key, *of_row)
                yield replace(rule, source=fused, shape=shape, rows=(begin, end))
            else:
                own = f"{block}{_OF_LAYER[part]}.{kind}"
                yield replace(rule, source=own, shape=(end - begin, *of_row), rows=None)
        else:
            if part in ("up", "down") and _is_exchanged(mmproj, block, layers.hidden_size):
                part = "down" if part == "up" else "up"
            yield replace(rule, source=f"{block}{_OF_LAYER[part]}.{kind}")


def _is_exchanged(mmproj: Mmproj, block: str, hidden: int) -> bool:
    """Return True if `ffn_down` has the shape of the MLP's first matrix, and `ffn_up` has not."""
    up, down = (mmproj.tensors.get(f"{block}ffn_{name}.weight") for name in ("up", "down"))
    if up is None or down is None or len(up.shape) != 2 or len(down.shape) != 2:
        return False
    return down.shape == up.shape[::-1] and down.shape[1] == hidden != up.shape[1]
