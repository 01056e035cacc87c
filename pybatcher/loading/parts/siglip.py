"""The vision towers of LFM2-VL and Idefics 3: a SigLIP, whose projector joins squares of patches.

The patches of LFM2-VL's SigLIP 2 are embedded by a linear layer instead of a convolution.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..checkpoints.blueprint import Blueprint
from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_VOCABULARY, MAX_WIDTH
from ..checkpoints.tensors import TensorRule
from ..checkpoints.vision_config import Projector, ProjectorLinear, VisionConfig
from .vision import (
    encoder_config,
    linear_rules,
    norm_rules,
    read_activation,
    read_encoder_sizes,
    read_group,
    siglip_rules,
    with_vision,
)

__all__ = ["with_siglip", "with_siglip2"]

_DEFAULTS = {
    "num_channels": 3,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "intermediate_size": 3072,
}
_EPS_OF_PROJECTOR = 1e-5
_PREFIXES_OF_IDEFICS = tuple((f"model.{part}", part) for part in ("vision_model.", "connector."))
_PREFIXES_OF_LFM2 = tuple(
    (f"{prefix}{source}", part)
    for source, part in (
        ("vision_tower.vision_model.", "vision_model."),
        ("vision_tower.", "vision_model."),
        ("multi_modal_projector.", "multi_modal_projector."),
    )
    for prefix in ("model.", "")
)


def with_siglip(blueprint: Blueprint, fields: Fields) -> Blueprint:
    """Return the blueprint of a text model with the tower of an idefics3 or smolvlm config.json.

    Raises ModelFormatError.
    """
    own = {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32, "image_size": 224}
    vision = fields.child("vision_config").with_defaults({**_DEFAULTS, **own})
    sizes = read_encoder_sizes(vision)
    side = vision.integer("patch_size", 1, 256)
    image_side = vision.integer("image_size", side, 2**14)
    group = read_group(fields, "scale_factor", sizes.hidden)
    out_size = blueprint.config.hidden_size
    tower = _tower(
        blueprint,
        vision,
        n_positions=(image_side // side) ** 2,
        projector=Projector(group=group, norm_eps=1e-6, linears=(ProjectorLinear(n_out=out_size),)),
    )
    n_channels = vision.integer("num_channels", 1, 16)

    def rules() -> Iterator[TensorRule]:
        yield from siglip_rules(tower, "vision_model.", (n_channels, side, side))
        yield from linear_rules(
            "tower.projector.linears.0",
            "connector.modality_projection.proj",
            out_size,
            group * sizes.hidden,
            bias=False,
        )

    return with_vision(blueprint, tower, rules(), _PREFIXES_OF_IDEFICS)


def with_siglip2(blueprint: Blueprint, fields: Fields) -> Blueprint:
    """Return the blueprint of a text model with the tower of a lfm2_vl config.json.

    Raises ModelFormatError.
    """
    own = {"hidden_size": 768, "patch_size": 16, "num_patches": 256}
    vision = fields.child("vision_config").with_defaults({**_DEFAULTS, **own})
    vision.refuse_unless("model_type", "siglip2_vision_model")
    sizes = read_encoder_sizes(vision)
    group = read_group(fields, "downsample_factor", sizes.hidden)
    inner = fields.integer("projector_hidden_size", 1, MAX_WIDTH, 2560)
    out_size = blueprint.config.hidden_size
    activation = read_activation(fields, "projector_hidden_act", "gelu")
    is_normed = fields.boolean("projector_use_layernorm", True)
    tower = _tower(
        blueprint,
        vision,
        n_positions=vision.integer("num_patches", 1, MAX_VOCABULARY),
        projector=Projector(
            group=group,
            norm_after="layer" if is_normed else "none",
            norm_eps=_EPS_OF_PROJECTOR,
            linears=(
                ProjectorLinear(n_out=inner, activation=activation),
                ProjectorLinear(n_out=out_size),
            ),
        ),
    )
    bias = fields.boolean("projector_bias", True)

    def rules() -> Iterator[TensorRule]:
        here, there, joined = "tower.projector.", "multi_modal_projector.", group * sizes.hidden
        yield from siglip_rules(tower, "vision_model.", (tower.patch_size,))
        if is_normed:
            yield from norm_rules(f"{here}norm_after", f"{there}layer_norm", joined)
        yield from linear_rules(f"{here}linears.0", f"{there}linear_1", inner, joined, bias=bias)
        yield from linear_rules(f"{here}linears.1", f"{there}linear_2", out_size, inner, bias=bias)

    return with_vision(blueprint, tower, rules(), _PREFIXES_OF_LFM2)


def _tower(
    blueprint: Blueprint, vision: Fields, *, n_positions: int, projector: Projector
) -> VisionConfig:
    side = vision.integer("patch_size", 1, 256)
    layers = encoder_config(
        blueprint.config.architecture,
        read_encoder_sizes(vision),
        activation=read_activation(vision, "hidden_act", "gelu_pytorch_tanh"),
        norm_eps=vision.number("layer_norm_eps", 1e-12, 1.0, 1e-6),
    )
    return VisionConfig(
        layers=layers,
        patch_size=vision.integer("num_channels", 1, 16) * side**2,
        n_positions=n_positions,
        final_norm=True,
        projector=projector,
    )
