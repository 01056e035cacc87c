from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pybatcher.errors import ModelFormatError
from pybatcher.loading import ModelConfig, from_torch, open_model
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import read_blueprint
from pybatcher.testing.checkpoints import make_checkpoint, make_module

BASE = {
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "sliding_window": 16,
    "query_pre_attn_scalar": 25,
}


def read(model_type: str = "gemma3_text", **changes: Any) -> ModelConfig:
    fields = {**BASE, "model_type": model_type, **changes}
    return read_blueprint(Fields(fields, "config.json")).config


def turns(theta: float, factor: float = 1.0) -> list[float]:
    """The frequencies of a head of 10."""
    return [np.float32(theta ** (-i / 10) / factor).item() for i in range(0, 10, 2)]


def test_what_config_json_says() -> None:
    config = read()
    assert config == ModelConfig(
        architecture="gemma3",
        vocab_size=100,
        hidden_size=48,
        n_layers=4,
        n_heads=6,
        n_kv_heads=2,
        head_dim=10,
        intermediate_size=80,
        max_position_embeddings=64,
        norm="rms",
        norm_eps=1e-6,
        activation="gelu_tanh",
        gated_mlp=True,
        position="rope",
        ropes=config.ropes,
        layer_ropes=(1, 1, 1, 1),
        attention_scale=1 / 5,
        sliding_windows=(16, 16, 16, 16),
        post_norm=True,
        embedding_scale=48**0.5,
    )


def test_gemma_2() -> None:
    config = read("gemma2")
    assert (config.architecture, config.layer_ropes, len(config.ropes)) == ("gemma2", (0,) * 4, 1)
    assert config.sliding_windows == (16, 0, 16, 0)
    assert (config.attention_softcap, config.logit_softcap) == (50.0, 30.0)
    config = read("gemma2", attn_logit_softcapping=None, final_logit_softcapping=7.0)
    assert (config.attention_softcap, config.logit_softcap) == (0.0, 7.0)


def test_what_google_leaves_out() -> None:
    fields = {"model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 26}
    config = read_blueprint(Fields(fields, "config.json")).config
    assert (config.n_heads, config.n_kv_heads, config.head_dim) == (8, 4, 256)
    assert (config.vocab_size, config.max_position_embeddings) == (262208, 131072)
    assert (config.attention_scale, config.logit_softcap) == (1 / 16, 0.0)
    assert [i for i, window in enumerate(config.sliding_windows) if window == 0] == [5, 11, 17, 23]
    assert config.layer_ropes == tuple(int(window > 0) for window in config.sliding_windows)


@pytest.mark.parametrize(
    "changes",
    [
        {
            "rope_theta": 2e5,
            "rope_local_base_freq": 300.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window_pattern": 2,
        },
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
            },
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ],
)
def test_frequencies_of_both_kinds_of_layers(changes: dict[str, Any]) -> None:
    """As transformers 4 wrote them, and as 5 does."""
    config = read(**changes)
    assert config.layer_ropes == (1, 0, 1, 0)
    assert config.sliding_windows == (16, 0, 16, 0)
    full, sliding = config.ropes
    np.testing.assert_allclose(full.inv_freq, turns(2e5, 8.0), rtol=1e-6)
    np.testing.assert_allclose(sliding.inv_freq, turns(300.0), rtol=1e-6)


def test_frequencies_that_nothing_says() -> None:
    full, sliding = read().ropes
    np.testing.assert_allclose(full.inv_freq, turns(1e6), rtol=1e-6)
    np.testing.assert_allclose(sliding.inv_freq, turns(1e4), rtol=1e-6)


def test_an_encoder() -> None:
    """EmbeddingGemma: windows on both sides, each of half the size."""
    config = read(use_bidirectional_attention=True, sliding_window=16)
    assert config == replace(read(), causal=False, sliding_windows=(9, 9, 9, 9))
    assert read(use_bidirectional_attention=False) == read()
    fields = {**BASE, "model_type": "gemma3_text", "architectures": ["Gemma3TextModel"]}
    assert read_blueprint(Fields(fields, "config.json")).generates
    fields["use_bidirectional_attention"] = True
    for classes in (["Gemma3TextModel"], ["Gemma3ForCausalLM"]):
        blueprint = read_blueprint(Fields({**fields, "architectures": classes}, "config.json"))
        assert (blueprint.generates, blueprint.config.causal) == (False, False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_activation": "gelu"}, "hidden_activation is 'gelu'; expected 'gelu_pytorch"),
        (
            {"model_type": "gemma2", "use_bidirectional_attention": True},
            "use_bidirectional_attention is True",
        ),
        ({"use_bidirectional_attention": "yes"}, "use_bidirectional_attention is 'yes'"),
        ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
        ({"query_pre_attn_scalar": None}, "query_pre_attn_scalar is None"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping is -1.0"),
        ({"final_logit_softcapping": "30"}, "final_logit_softcapping is '30'"),
        ({"model_type": "gemma2", "attn_logit_softcapping": 0.0}, "attn_logit_softcapping is 0.0"),
        ({"layer_types": ["full_attention"]}, "layer_types is .* a list of 4 layer types"),
        ({"layer_types": ["chunked"] * 4}, "a list of 'full_attention' and 'sliding_attention'"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
        ({"rope_local_base_freq": -1.0}, "rope_local_base_freq is -1.0"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters: rope_theta is 10000.0"),
        ({"rope_parameters": {"full_attention": 3}}, "rope_parameters: full_attention is 3"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"head_dim": 7}, "head_dim is 7; expected an even number"),
    ],
)
def test_what_is_not_supported_or_absurd_is_refused_by_name(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelFormatError, match=f"^config.json: .*{said}"):
        read(**changes)


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_norms_have_one_added_in_f32(architecture: str, dtype: str) -> None:
    module = make_module(architecture, dtype=dtype)
    live = from_torch(module)
    norms = {name: tensor for name, tensor in live.tensors.items() if tensor.array.ndim == 1}
    assert len(norms) == 1 + live.config.n_layers * (4 if architecture == "gemma2" else 6)
    weight = module.model.layers[1].post_feedforward_layernorm.weight.detach().float().numpy()
    made = norms["layers.1.mlp_post_norm.weight"]
    assert made.dtype == "f32"
    np.testing.assert_array_equal(made.array, weight + np.float32(1))
    assert all(tensor.dtype == "f32" for tensor in norms.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_embeddings_scale_is_rounded_as_in_transformers(dtype: str) -> None:
    module = make_module("gemma3", dtype=dtype)
    embed = module.model.embed_tokens
    expected = embed.embed_scale.to(embed.weight.dtype).item()
    assert from_torch(module).config.embedding_scale == expected
    assert (
        expected
        == {"float32": np.float32(48**0.5), "bfloat16": 6.9375, "float16": 6.9296875}[dtype]
    )


# -- with images ------------------------------------------------------------------------------


def multimodal(directory: Path) -> Any:
    """Save a Gemma 3 with images; return the module."""
    import torch
    import transformers

    config = transformers.Gemma3Config(
        text_config={**BASE, "sliding_window_pattern": 2},
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        mm_tokens_per_image=4,
    )
    torch.manual_seed(0)
    module = transformers.Gemma3ForConditionalGeneration(config).eval()
    module.save_pretrained(directory)
    return module


@pytest.mark.slow
def test_the_text_part_of_a_model_with_images(tmp_path: Path) -> None:
    module = multimodal(tmp_path)
    said = r"only the text part of the gemma3 is loaded; left out: .*vision_tower \(\d+ tensors\)"
    with pytest.warns(UserWarning, match=said):
        saved = open_model(tmp_path)
    with pytest.warns(UserWarning, match=r"multi_modal_projector \(2 tensors\)"):
        live = from_torch(module)
    scale = float(np.float32(48**0.5))
    expected = replace(read(sliding_window_pattern=2), embedding_scale=scale)
    assert saved.config == live.config == expected
    weight = module.model.language_model.layers[2].mlp.up_proj.weight.detach().numpy()
    for model in (saved, live):
        np.testing.assert_array_equal(model.tensors["layers.2.up.weight"].array, weight)
    assert saved.tensors.keys() == live.tensors.keys()


def test_the_names_that_google_published(tmp_path: Path) -> None:
    """All of the text model under one name, and a head that is not tied."""
    text = make_checkpoint(tmp_path / "text", "gemma3", tie_word_embeddings=False)
    tensors = load_file(text / "model.safetensors")
    renamed = {f"language_model.{name}": array for name, array in tensors.items()}
    renamed["vision_tower.patch.weight"] = np.zeros(3, np.float32)
    config = json.loads((text / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": config})
    )
    save_file(renamed, tmp_path / "model.safetensors")
    with pytest.warns(UserWarning, match=r"left out: 'vision_tower \(1 tensors\)'"):
        loaded = open_model(tmp_path)
    known = open_model(text)
    assert loaded.config == known.config
    assert loaded.tensors.keys() == known.tensors.keys()
    assert "head.weight" in loaded.tensors
    for name, tensor in known.tensors.items():
        np.testing.assert_array_equal(loaded.tensors[name].array, tensor.array, err_msg=name)


def test_the_text_part_alone_says_nothing(tmp_path: Path) -> None:
    assert open_model(make_checkpoint(tmp_path, "gemma3")).config.architecture == "gemma3"


def test_a_text_part_of_another_kind() -> None:
    fields = {"model_type": "gemma3", "text_config": {**BASE, "model_type": "llama"}}
    with pytest.raises(ModelFormatError, match="text_config: model_type is 'llama'"):
        read_blueprint(Fields(fields, "config.json"))
