"""The vision tower of Mistral 3: a Pixtral, whose projector merges squares of patches."""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.tensors import TensorRule
from ..checkpoints.vision_config import Projector, ProjectorLinear, VisionConfig
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

__all__ = ["with_pixtral"]

_NORM_EPS = 1e-5
_DEFAULTS = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "patch_size": 14,
}
_LAYER_NAMES = {
    "attn_norm": "attention_norm",
    "q": "attention.q_proj",
    "k": "attention.k_proj",
    "v": "attention.v_proj",
    "o": "attention.o_proj",
    "mlp_norm": "ffn_norm",
    "gate": "feed_forward.gate_proj",
    "up": "feed_forward.up_proj",
    "down": "feed_forward.down_proj",
}
_PREFIXES = tuple(
    (f"{prefix}{part}", part)
    for part in ("vision_tower.", "multi_modal_projector.")
    for prefix in ("model.", "")
)


def with_pixtral(blueprint: Blueprint, fields: Fields) -> Blueprint:
    """Return the blueprint of a text model with the tower of `vision_config`, if it has this field.

    fields: config.json. Raises ModelFormatError.
    """
    if "vision_config" not in fields:
        return blueprint
    vision = fields.child("vision_config").with_defaults(_DEFAULTS)
    vision.refuse_unless("model_type", "pixtral")
    layer = fields.get("vision_feature_layer")
    if layer not in (None, -1, [-1]) or isinstance(layer, bool):
        raise fields.error("vision_feature_layer", "-1: the features of the last layer")
    tower = _read_tower(vision, fields, blueprint)
    has_bias = fields.boolean("multimodal_projector_bias", False)
    return with_vision(blueprint, tower, _rules(tower, vision, has_bias=has_bias), _PREFIXES)


def _read_tower(vision: Fields, fields: Fields, blueprint: Blueprint) -> VisionConfig:
    sizes = read_encoder_sizes(vision)
    vision.refuse_unless("head_dim", sizes.head_dim)
    layers = encoder_config(
        blueprint.config.architecture,
        sizes,
        activation=read_activation(vision, "hidden_act", "gelu"),
        norm="rms",
        norm_eps=_NORM_EPS,
        gated_mlp=True,
        rope=read_axial_rope(vision, "num_attention_heads", sizes.head_dim, alternating=True),
    )
    out_size = blueprint.config.hidden_size
    activation = read_activation(fields, "projector_hidden_act", "gelu")
    return VisionConfig(
        layers=layers,
        patch_size=_n_channels(vision) * _side(vision) ** 2,
        pre_norm=True,
        projector=Projector(
            group=read_group(fields, "spatial_merge_size", sizes.hidden),
            norm_before="rms",
            norm_eps=blueprint.config.norm_eps,
            linears=(
                ProjectorLinear(n_out=sizes.hidden),
                ProjectorLinear(n_out=out_size, activation=activation),
                ProjectorLinear(n_out=out_size),
            ),
        ),
    )


def _n_channels(vision: Fields) -> int:
    n_channels: int = vision.integer("num_channels", 1, 16)
    return n_channels


def _side(vision: Fields) -> int:
    side: int = vision.integer("patch_size", 1, 256)
    return side


def _rules(tower: VisionConfig, vision: Fields, *, has_bias: bool) -> Iterator[TensorRule]:
    """Yield the rules of all tensors.

    The columns of the merging layer are the patches of each channel, one channel after the other;
    the tower joins the channels of each patch.
    """
    hidden, projector = tower.layers.hidden_size, tower.projector
    out_size = projector.out_size
    yield TensorRule(
        name="tower.patch.weight",
        source="vision_tower.patch_conv.weight",
        shape=(hidden, _n_channels(vision), _side(vision), _side(vision)),
        reshaped=(hidden, tower.patch_size),
    )
    yield from norm_rules("tower.pre_norm", "vision_tower.ln_pre", hidden, bias=False)
    yield from layer_rules(tower, "vision_tower.transformer.layers.", _LAYER_NAMES, bias=False)
    here, there = "tower.projector.", "multi_modal_projector."
    yield from norm_rules(f"{here}norm_before", f"{there}norm", hidden, bias=False)
    yield TensorRule(
        name=f"{here}linears.0.weight",
        source=f"{there}patch_merger.merging_layer.weight",
        shape=(hidden, projector.group * hidden),
        column_groups=projector.group,
    )
    yield from linear_rules(f"{here}linears.1", f"{there}linear_1", out_size, hidden, bias=has_bias)
    yield from linear_rules(
        f"{here}linears.2", f"{there}linear_2", out_size, out_size, bias=has_bias
    )
