"""Qwen3-VL, dense and mixtures of experts: the text model of Qwen3 with a vision tower.

Features of some layers of the tower are added after the first layers of the text model (deepstack).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...checkpoints.blueprint import TEXT_PREFIXES, Blueprint
from ...checkpoints.fields import Fields
from ...checkpoints.limits import MAX_LAYERS, MAX_WIDTH
from ...checkpoints.model_config import ModelConfig
from ...parts import gguf_experts, llama_like
from ...parts.family import Family, GgufVisionReader
from ...parts.gguf_contents import GgufContents
from ...parts.gguf_experts import GgufExperts
from ...parts.gguf_llama import biases, gguf_blueprint, read_gguf_config, renamed
from ...parts.gguf_vision import GgufVision, Mmproj, read_image_settings, tower_rules
from ...parts.qwen_vision import with_qwen_vision

_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 128000,
    "rope_theta": 500000.0,
}
_SECTION = (24, 20, 20)
_DEEPSTACK = (8, 16, 24)
_MAX_PIXELS = 2**28
_SECTION_OF_3_5 = (11, 11, 10)
_LEAST_TOKENS, _MOST_TOKENS = 64, 4096
"""Tokens of an image if an mmproj file has no bounds: the published least, llama.cpp's most."""
_REQUIRED = ("depth", "hidden_size", "intermediate_size", "num_heads", "patch_size")


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of a qwen3_vl config.json. Raises ModelFormatError."""
    text = fields.child("text_config").with_defaults(
        {
            **_DEFAULTS,
            "model_type": "qwen3_vl_text",
            "tie_word_embeddings": fields.get("tie_word_embeddings"),
        }
    )
    text.refuse_unless("model_type", "qwen3_vl_text")
    n_layers = llama_like.read_n_layers(text)
    config = llama_like.read_config(text, (0,) * n_layers)
    config = replace(config, architecture="qwen3_vl")
    bias = text.boolean("attention_bias", False)
    rules = llama_like.rules(config, qkv_bias=bias, o_bias=bias, mlp_bias=False, qk_norm=True)
    tied = text.boolean("tie_word_embeddings", False)
    blueprint = Blueprint(config, tuple(rules), tied, text_prefixes=TEXT_PREFIXES)
    return with_qwen_vision(blueprint, fields, _SECTION, _DEEPSTACK)


def _read_gguf(contents: GgufContents) -> Blueprint:
    return _gguf_blueprint(contents, read_gguf_config(contents, architecture="qwen3_vl"))


def _read_gguf_moe(contents: GgufContents) -> Blueprint:
    experts = GgufExperts(always=True)
    config = read_gguf_config(contents, architecture="qwen3_vl_moe", experts=experts)
    return _gguf_blueprint(contents, config)


def _gguf_blueprint(contents: GgufContents, config: ModelConfig) -> Blueprint:
    """Return the blueprint of the text model alone, whose rows have one position each."""
    rules = renamed(llama_like.rules(config, **biases(contents), qk_norm=True))
    return gguf_blueprint(contents, config, (*rules, *gguf_experts.expert_rules(config)))


def _read_mmproj(mmproj: Mmproj, blueprint: Blueprint) -> GgufVision:
    """Return the tower of an mmproj file, of Qwen3-VL or of Qwen 3.5, which has no deepstack.

    Raises ModelFormatError.
    """
    keys, text = mmproj.keys, mmproj.text.keys
    n_layers = keys.integer("block_count", 1, MAX_LAYERS)
    flags = keys.get("is_deepstack_layers")
    is_deepstack = [] if flags is None else keys.flags("is_deepstack_layers", n_layers)
    deepstack = [layer for layer, found in enumerate(is_deepstack) if found]
    is_3_vl = mmproj.text.architecture.startswith("qwen3vl")
    n_deepstack = text.integer("n_deepstack_layers", 0, MAX_LAYERS, 0) if is_3_vl else 0
    if len(deepstack) != n_deepstack:
        raise keys.error(
            "is_deepstack_layers",
            f"{n_deepstack} times true, as of {text.prefix}n_deepstack_layers in "
            f"{mmproj.text.metadata.source}",
        )
    table = mmproj.tensors.get("v.position_embd.weight")
    vision = mmproj.translated(
        {
            "num_position_embeddings": 1 if table is None else table.shape[0],
            "deepstack_visual_indexes": deepstack,
        },
        {
            "depth": "block_count",
            "hidden_size": "embedding_length",
            "intermediate_size": "feed_forward_length",
            "num_heads": "attention.head_count",
            "out_hidden_size": "projection_dim",
            "patch_size": "patch_size",
            "spatial_merge_size": "spatial_merge_size",
        },
    )
    for name in _REQUIRED:
        vision.integer(name, 1, MAX_WIDTH)
    config = Fields(
        {
            "model_type": "qwen3_vl" if is_3_vl else "qwen3_5",
            "vision_config": vision,
            "text_config": {"rope_scaling": _read_sections(mmproj.text)},
        },
        mmproj.metadata.source,
    )
    section = _SECTION if is_3_vl else _SECTION_OF_3_5
    blueprint = with_qwen_vision(blueprint, config, section, (0,) if len(deepstack) else ())
    names = {
        "projector.norm_before": "v.post_ln",
        "projector.linears.0": "mm.0",
        "projector.linears.1": "mm.2",
    }
    for i, layer in enumerate(deepstack):
        here, there = f"deepstack.{i}.", f"v.deepstack.{layer}."
        names |= {
            f"{here}norm_after": f"{there}norm",
            f"{here}linears.0": f"{there}fc1",
            f"{here}linears.1": f"{there}fc2",
        }
    pixels = (
        vision.integer("patch_size", 1, 256) * vision.integer("spatial_merge_size", 1, 32)
    ) ** 2
    least = keys.integer("image_min_pixels", 1, _MAX_PIXELS, _LEAST_TOKENS * pixels)
    most = keys.integer("image_max_pixels", least, _MAX_PIXELS, max(least, _MOST_TOKENS * pixels))
    return GgufVision(
        blueprint=replace(blueprint, vision_rules=tuple(tower_rules(mmproj, blueprint, names))),
        config=config,
        preprocessor=read_image_settings(
            mmproj, size={"shortest_edge": least, "longest_edge": most}
        ),
    )


def _read_sections(contents: GgufContents) -> Fields:
    """Return the field mrope_section, from a key that has a fourth number, which is 0."""
    name = "rope.dimension_sections"
    found = contents.keys.get(name)
    values = {}
    if found is not None:
        is_whole = isinstance(found, np.ndarray) and found.dtype.kind in "iu" and len(found) == 4
        if not is_whole or found[3] != 0:
            raise contents.keys.error(name, "four whole numbers, the last of them 0")
        values["mrope_section"] = found[:3].tolist()
    named = {"mrope_section": contents.keys.prefix + name}
    return Fields(values, contents.metadata.source, named)


FAMILY = Family(
    hf={"qwen3_vl": _read},
    classes={"qwen3_vl": "Qwen3VLForConditionalGeneration"},
    gguf={"qwen3vl": _read_gguf, "qwen3vlmoe": _read_gguf_moe},
    gguf_vision={
        "qwen3vl_merger": GgufVisionReader(
            ("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"), _read_mmproj
        )
    },
)
