"""The vision towers of Qwen 3-VL and Qwen 3.5, and the rope of their text models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_VOCABULARY
from ..checkpoints.rope import multimodal_axes
from ..checkpoints.tensors import TensorRule
from ..checkpoints.vision_config import Deepstack, Projector, ProjectorLinear, VisionConfig
from .vision import (
    encoder_config,
    layer_rules,
    linear_rules,
    norm_rules,
    read_activation,
    read_axial_rope,
    read_encoder_sizes,
    read_group,
    with_vision,
)

__all__ = [
    "NORM_EPS",
    "PREFIXES",
    "read_patch_shape",
    "with_multimodal_rope",
    "with_qwen_vision",
]

PREFIXES = (("model.visual.", "visual."), ("visual.", "visual."))
"""The prefixes of the tower's tensors."""

NORM_EPS = 1e-6
"""Added to the variance in all norms."""
_DEFAULTS: dict[str, Any] = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 2304,
}
_LAYER_NAMES = {
    "attn_norm": "norm1",
    "qkv": "attn.qkv",
    "o": "attn.proj",
    "mlp_norm": "norm2",
    "up": "mlp.linear_fc1",
    "down": "mlp.linear_fc2",
}


def with_qwen_vision(
    blueprint: Blueprint,
    fields: Fields,
    section: tuple[int, int, int],
    deepstack: tuple[int, ...] = (),
) -> Blueprint:
    """Return the blueprint of a text model with the tower of `vision_config`, if it has this field.

    fields: config.json. section: the default of mrope_section. deepstack: the default of
    deepstack_visual_indexes; (): the family has no such field.
    Raises ModelFormatError.
    """
    if "vision_config" not in fields:
        return blueprint
    blueprint = with_multimodal_rope(blueprint, fields.child("text_config"), section)
    vision = fields.child("vision_config").with_defaults(_DEFAULTS)
    config = blueprint.config
    tower = _read_tower(vision, config.architecture, config.hidden_size, deepstack)
    if len(tower.deepstack) > config.n_layers:
        raise vision.error(
            "deepstack_visual_indexes", f"a list of up to {config.n_layers}, the layers of the text"
        )
    return with_vision(blueprint, tower, _rules(tower, vision), PREFIXES)


def with_multimodal_rope(
    blueprint: Blueprint, text: Fields, section: tuple[int, int, int], *, interleaved: bool = True
) -> Blueprint:
    """Return the blueprint of a text model whose only rope rotates by three positions.

    text: the object with the rope's fields. section: the default of mrope_section.
    Raises ModelFormatError.
    """
    scaling = text.child("rope_scaling" if "rope_scaling" in text else "rope_parameters")
    config = blueprint.config
    (rope,) = config.ropes
    axes = multimodal_axes(scaling, rope.rotary_dim, section, interleaved=interleaved)
    axes += (0,) * (len(rope.inv_freq) - len(axes))
    return replace(blueprint, config=replace(config, ropes=(replace(rope, axes=axes),)))


def _read_tower(
    fields: Fields, architecture: str, out_size: int, deepstack: tuple[int, ...]
) -> VisionConfig:
    sizes = read_encoder_sizes(fields, "depth", "num_heads")
    group = read_group(fields, "spatial_merge_size", sizes.hidden)
    joined = group * sizes.hidden
    fields.refuse_unless("out_hidden_size", out_size)
    layers = encoder_config(
        architecture,
        sizes,
        activation=read_activation(fields, "hidden_act", "gelu_pytorch_tanh"),
        norm_eps=NORM_EPS,
        rope=read_axial_rope(fields, "num_heads", sizes.head_dim),
    )
    linears = (ProjectorLinear(n_out=joined, activation="gelu"), ProjectorLinear(n_out=out_size))
    merger = Projector(group=group, norm_before="layer", norm_eps=NORM_EPS, linears=linears)
    of_layer = replace(merger, norm_before="none", norm_after="layer")
    indices = _read_deepstack(fields, sizes.n_layers, deepstack) if deepstack else ()
    return VisionConfig(
        layers=layers,
        patch_size=prod(read_patch_shape(fields)),
        projector=merger,
        n_positions=fields.integer("num_position_embeddings", 1, MAX_VOCABULARY),
        deepstack=tuple(Deepstack(layer=layer, projector=of_layer) for layer in indices),
    )


def _read_deepstack(fields: Fields, n_layers: int, default: tuple[int, ...]) -> tuple[int, ...]:
    name = "deepstack_visual_indexes"
    found = fields.get(name)
    layers = default if found is None else found
    is_list = isinstance(layers, list | tuple) and all(type(layer) is int for layer in layers)
    if (
        not is_list
        or sorted(set(layers)) != list(layers)
        or any(not 0 <= layer < n_layers for layer in layers)
    ):
        raise fields.error(name, f"an ascending list of layers from 0 to {n_layers - 1}")
    return tuple(layers)


def read_patch_shape(fields: Fields) -> tuple[int, int, int, int]:
    """Return the channels, frames, height and width of a patch."""
    side = fields.integer("patch_size", 1, 256)
    frames = fields.integer("temporal_patch_size", 1, 16)
    return fields.integer("in_channels", 1, 16), frames, side, side


def _rules(vision: VisionConfig, fields: Fields) -> Iterator[TensorRule]:
    hidden = vision.layers.hidden_size
    yield TensorRule(
        name="tower.patch.weight",
        source="visual.patch_embed.proj.weight",
        shape=(hidden, *read_patch_shape(fields)),
        reshaped=(hidden, vision.patch_size),
    )
    yield TensorRule(
        name="tower.patch.bias", source="visual.patch_embed.proj.bias", shape=(hidden,)
    )
    yield TensorRule(
        name="tower.positions.weight",
        source="visual.pos_embed.weight",
        shape=(vision.n_positions, hidden),
    )
    yield from layer_rules(vision, "visual.blocks.", _LAYER_NAMES)
    yield from _merger_rules("tower.projector.", "visual.merger.", vision.projector, hidden)
    for i, deepstack in enumerate(vision.deepstack):
        source = f"visual.deepstack_merger_list.{i}."
        yield from _merger_rules(f"tower.deepstack.{i}.", source, deepstack.projector, hidden)


def _merger_rules(here: str, there: str, projector: Projector, hidden: int) -> Iterator[TensorRule]:
    joined = projector.group * hidden
    if projector.norm_before != "none":
        yield from norm_rules(f"{here}norm_before", f"{there}norm", hidden)
    else:
        yield from norm_rules(f"{here}norm_after", f"{there}norm", joined)
    yield from linear_rules(f"{here}linears.0", f"{there}linear_fc1", joined, joined)
    yield from linear_rules(f"{here}linears.1", f"{there}linear_fc2", projector.out_size, joined)
