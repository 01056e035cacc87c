"""Qwen2.5-VL: the text model of Qwen2 with a vision tower, most of whose layers have windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from ...checkpoints.blueprint import TEXT_PREFIXES, Blueprint
from ...checkpoints.fields import Fields
from ...checkpoints.llama_config import read_sizes
from ...checkpoints.rope import read_rope
from ...checkpoints.tensors import TensorRule
from ...checkpoints.vision_config import Projector, ProjectorLinear, VisionConfig
from ...parts import llama_like
from ...parts.family import Family
from ...parts.qwen_vision import NORM_EPS, PREFIXES, read_patch_shape, with_multimodal_rope
from ...parts.qwen_windows import read_windows
from ...parts.vision import (
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

_TEXT_DEFAULTS: dict[str, Any] = {
    "model_type": "qwen2_5_vl_text",
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-5,
}
_DEFAULTS: dict[str, Any] = {
    "depth": 32,
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "num_heads": 16,
    "in_channels": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
_SECTION = (16, 24, 24)
_LAYER_NAMES = {
    "attn_norm": "norm1",
    "qkv": "attn.qkv",
    "o": "attn.proj",
    "mlp_norm": "norm2",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_PUBLISHED_PREFIX = (("model.", "model."),)
"""Published files have the text model without a prefix of its own."""


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a qwen2_5_vl config.json. Raises ModelFormatError.

    Published files have the fields of the text model beside `vision_config`.
    """
    text = fields if "text_config" not in fields else fields.child("text_config")
    tied = fields.get("tie_word_embeddings") or text.get("tie_word_embeddings")
    text = text.with_values({"tie_word_embeddings": tied}).with_defaults(_TEXT_DEFAULTS)
    text.refuse_unless("model_type", "qwen2_5_vl", "qwen2_5_vl_text")
    sizes = read_sizes(text, llama_like.NAMES)
    rope = read_rope(
        text, sizes.head_dim, sizes.max_position_embeddings, aliases={"mrope": "default"}
    )
    config = llama_like.read_config(text, read_windows(text), rope=rope)
    config = replace(config, architecture="qwen2_5_vl")
    rules = llama_like.rules(config, qkv_bias=True, o_bias=False, mlp_bias=False)
    blueprint = Blueprint(
        config,
        tuple(rules),
        text.boolean("tie_word_embeddings", False),
        text_prefixes=TEXT_PREFIXES + _PUBLISHED_PREFIX,
    )
    if "vision_config" not in fields:
        return blueprint
    blueprint = with_multimodal_rope(blueprint, text, _SECTION, interleaved=False)
    vision = fields.child("vision_config").with_defaults(_DEFAULTS)
    if "in_chans" in vision:
        vision = vision.with_values({"in_channels": vision.get("in_chans")})
    tower = _read_tower(vision, config.hidden_size)
    return with_vision(blueprint, tower, _rules(tower, vision), PREFIXES)


def _read_tower(fields: Fields, out_size: int) -> VisionConfig:
    sizes = read_encoder_sizes(fields, "depth", "num_heads")
    group = read_group(fields, "spatial_merge_size", sizes.hidden)
    fields.refuse_unless("out_hidden_size", out_size)
    layers = encoder_config(
        "qwen2_5_vl",
        sizes,
        activation=read_activation(fields, "hidden_act", "silu"),
        norm="rms",
        norm_eps=NORM_EPS,
        gated_mlp=True,
        rope=read_axial_rope(fields, "num_heads", sizes.head_dim),
    )
    name = "fullatt_block_indexes"
    full = fields.get(name)
    if not isinstance(full, list) or any(type(layer) is not int for layer in full):
        raise fields.error(name, "a list of the numbers of layers")
    joined = group * sizes.hidden
    return VisionConfig(
        layers=layers,
        patch_size=prod(read_patch_shape(fields)),
        projector=Projector(
            group=group,
            norm_before="rms",
            norm_eps=NORM_EPS,
            linears=(
                ProjectorLinear(n_out=joined, activation="gelu"),
                ProjectorLinear(n_out=out_size),
            ),
        ),
        windowed_layers=tuple(layer not in full for layer in range(sizes.n_layers)),
    )


def _rules(vision: VisionConfig, fields: Fields) -> Iterator[TensorRule]:
    hidden, projector = vision.layers.hidden_size, vision.projector
    joined = projector.group * hidden
    yield TensorRule(
        name="tower.patch.weight",
        source="visual.patch_embed.proj.weight",
        shape=(hidden, *read_patch_shape(fields)),
        reshaped=(hidden, vision.patch_size),
    )
    yield from layer_rules(vision, "visual.blocks.", _LAYER_NAMES)
    merger = "visual.merger."
    yield from norm_rules("tower.projector.norm_before", f"{merger}ln_q", hidden, bias=False)
    yield from linear_rules("tower.projector.linears.0", f"{merger}mlp.0", joined, joined)
    yield from linear_rules(
        "tower.projector.linears.1", f"{merger}mlp.2", projector.out_size, joined
    )


FAMILY = Family(
    hf={"qwen2_5_vl": _read},
    classes={"qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration"},
)
