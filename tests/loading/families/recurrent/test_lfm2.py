from __future__ import annotations

from typing import Any

import pytest

from pybatcher.errors import ModelFormatError
from pybatcher.loading.checkpoints.blueprint import Blueprint
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import read_blueprint

# As LFM2-1.2B was published, but smaller: with names of fields that later models have no more.
BASE: dict[str, Any] = {
    "model_type": "lfm2",
    "architectures": ["Lfm2ForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 48,
    "block_ff_dim": 300,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 64,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_dim": 48,
    "full_attn_idxs": [2, 5],
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
}
MOE: dict[str, Any] = {
    **{name: value for name, value in BASE.items() if not name.startswith(("block", "full"))},
    "model_type": "lfm2_moe",
    "architectures": ["Lfm2MoeForCausalLM"],
    "intermediate_size": 88,
    "layer_types": ["conv", "full_attention", "conv"] * 2,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "num_dense_layers": 2,
}


def read(**changes: Any) -> Blueprint:
    return read_blueprint(Fields({**BASE, **changes}, "config.json"))


def read_moe(**changes: Any) -> Blueprint:
    return read_blueprint(Fields({**MOE, **changes}, "config.json"))


def test_which_layers_are_convolutions() -> None:
    config = read().config
    assert config.short_conv is not None
    assert config.short_conv.in_layer == (True, True, False) * 2
    assert config.layer_ropes == (-1, -1, 0) * 2
    kinds = ["full_attention", "conv"] * 3
    listed = read(layer_types=kinds, full_attn_idxs=None).config.short_conv
    assert listed is not None
    assert listed.in_layer == (False, True) * 3
    assert read(full_attn_idxs=None).config.short_conv is None  # as in transformers
    assert read(layer_types=["full_attention"] * 6).config.short_conv is None


def test_the_width_of_mlps() -> None:
    """Two thirds of 300 in units of 64; as it is where the file says so; other names."""
    assert read().config.intermediate_size == 256
    assert read(block_ffn_dim_multiplier=1.5, block_multiple_of=7).config.intermediate_size == 301
    assert read(block_auto_adjust_ff_dim=False).config.intermediate_size == 300
    renamed = read(block_ff_dim=None, intermediate_size=303, block_multiple_of=1)
    assert renamed.config.intermediate_size == 202
    assert read_moe(block_ff_dim=999).config.intermediate_size == 88


def test_heads_are_tied_unless_a_file_says_otherwise() -> None:
    assert read().tied
    assert not read(tie_word_embeddings=False).tied
    assert not read(tie_embedding=False, tie_word_embeddings=True).tied


def test_names_of_tensors() -> None:
    sources = {rule.name: rule.source for rule in read().rules}
    assert sources["final_norm.weight"] == "model.embedding_norm.weight"
    assert sources["layers.2.o.weight"] == "model.layers.2.self_attn.out_proj.weight"
    assert sources["layers.0.short_conv.in.weight"] == "model.layers.0.conv.in_proj.weight"
    assert sources["layers.1.down.weight"] == "model.layers.1.feed_forward.w2.weight"
    assert "layers.0.q_norm.weight" not in sources
    assert "layers.2.short_conv.o.weight" not in sources


def test_experts() -> None:
    blueprint = read_moe(routed_scaling_factor=2.5, norm_topk_prob=False)
    moe = blueprint.config.moe
    assert moe is not None
    assert moe.sigmoid
    assert moe.in_layer == (False, False, True, True, True, True)
    assert (moe.weight_scale, moe.normalised) == (2.5, False)
    sources = {rule.name: rule.source for rule in blueprint.rules}
    assert sources["layers.2.expert_bias"] == "model.layers.2.feed_forward.expert_bias"
    assert sources["layers.3.experts.7.up.weight"].endswith("feed_forward.experts.7.w3.weight")
    assert "layers.1.router.weight" not in sources
    assert "layers.1.gate.weight" in sources
    unbiased = {rule.name for rule in read_moe(use_expert_bias=False).rules}
    assert "layers.2.expert_bias" not in unbiased
    assert read_moe(num_dense_layers=6).config.moe is None


def test_a_model_with_images_has_its_text_model_inside() -> None:
    text = {name: value for name, value in BASE.items() if name != "architectures"}
    fields = {
        "model_type": "lfm2_vl",
        "architectures": ["Lfm2VlForConditionalGeneration"],
        "tie_embedding": False,
        "text_config": text,
    }
    blueprint = read_blueprint(Fields(fields, "config.json"))
    assert not blueprint.tied
    assert blueprint.text_prefixes
    assert blueprint.config == read().config
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    vision = {"model_type": "siglip2_vision_model", "num_attention_heads": 2, **sizes}
    blueprint = read_blueprint(Fields({**fields, "vision_config": vision}, "config.json"))
    assert blueprint.vision is not None
    assert blueprint.vision.n_positions == 256
    assert blueprint.vision.projector.norm_after == "layer"
    assert blueprint.vision.projector.linears[0].n_out == 2560
    assert blueprint.without_vision().config == read().config
    plain = {**fields, "vision_config": vision, "projector_use_layernorm": False}
    tower = read_blueprint(Fields(plain, "config.json")).vision
    assert tower is not None
    assert tower.projector.norm_after == "none"
    clip = {**fields, "vision_config": {**vision, "model_type": "siglip_vision_model"}}
    with pytest.raises(ModelFormatError, match="model_type is 'siglip_vision_model'"):
        read_blueprint(Fields(clip, "config.json"))
    other = {**fields, "text_config": {**text, "model_type": "llama"}}
    with pytest.raises(ModelFormatError, match="text_config: model_type is 'llama'"):
        read_blueprint(Fields(other, "config.json"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"conv_bias": True}, "conv_bias"),
        ({"conv_L_cache": 1}, "from 2 to 64"),
        ({"conv_L_cache": 65}, "conv_L_cache"),
        ({"layer_types": ["conv"] * 6}, "one or more layers of 'full_attention'"),
        ({"layer_types": ["conv"] * 5}, "a list of 6"),
        ({"layer_types": [["conv"]] * 6}, "a list of 6 of full_attention and conv"),
        ({"layer_types": "conv"}, "layer_types"),
        ({"full_attn_idxs": []}, "full_attn_idxs"),
        ({"full_attn_idxs": [6]}, "numbers of layers, 0 to 5"),
        ({"full_attn_idxs": [True]}, "full_attn_idxs"),
        ({"full_attn_idxs": 2}, "full_attn_idxs"),
        ({"block_ff_dim": 1}, "a width that becomes 1 to"),
        ({"block_ffn_dim_multiplier": 1e6}, "a width that becomes 1 to"),
        ({"block_ffn_dim_multiplier": -1.0}, "block_ffn_dim_multiplier"),
        ({"block_multiple_of": 0}, "block_multiple_of"),
        ({"norm_eps": "small"}, "norm_eps"),
    ],
    ids=str,
)
def test_what_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ModelFormatError, match=expected):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_dense_layers": -1}, "num_dense_layers"),
        ({"routed_scaling_factor": 0.0}, "routed_scaling_factor"),
        ({"use_expert_bias": 1}, "use_expert_bias"),
    ],
    ids=str,
)
def test_what_is_refused_of_experts(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ModelFormatError, match=expected):
        read_moe(**changes)
