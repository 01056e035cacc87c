from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from pybatcher.errors import ModelFormatError
from pybatcher.loading import ModelConfig, from_torch, open_model
from pybatcher.loading.checkpoints.blueprint import PER_LAYER_EMBEDDINGS, Blueprint
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.model_config import LayerShape
from pybatcher.loading.families import read_blueprint
from pybatcher.testing.checkpoints import make_checkpoint, make_module

FULL, SLIDING = "full_attention", "sliding_attention"
BASE = {
    "model_type": "gemma4_text",
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "global_head_dim": 16,
    "max_position_embeddings": 64,
    "sliding_window": 16,
    "layer_types": [SLIDING, FULL] * 3,
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": 100,
}


def blueprint(**changes: Any) -> Blueprint:
    return read_blueprint(Fields({**BASE, **changes}, "config.json"))


def read(**changes: Any) -> ModelConfig:
    return blueprint(**changes).config


def sizes(config: ModelConfig) -> list[tuple[int, int, int, int]]:
    return [
        (shape.n_kv_heads, shape.head_dim, shape.intermediate_size, shape.kv_layer)
        for shape in config.layer_shapes
    ]


def test_what_config_json_says() -> None:
    config = read(final_logit_softcapping=30.0)
    assert config == ModelConfig(
        architecture="gemma4",
        vocab_size=100,
        hidden_size=48,
        n_layers=6,
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
        layer_ropes=(1, 0) * 3,
        attention_scale=1.0,
        sliding_windows=(16, 0) * 3,
        post_norm=True,
        embedding_scale=48**0.5,
        logit_softcap=30.0,
        layer_shapes=config.layer_shapes,
        value_norm=True,
        layer_scales=True,
        per_layer_embedding_size=4,
        per_layer_embedding_scale=2.0,
    )
    assert sizes(config) == [(2, 10, 80, -1), (2, 16, 80, -1)] * 3
    full, sliding = config.ropes
    turning = [1.0, np.float32(1e6 ** (-1 / 8)).item()]
    np.testing.assert_allclose(full.inv_freq, [*turning, *[0.0] * 6], rtol=1e-6)
    np.testing.assert_allclose(sliding.inv_freq[1], 1e4 ** (-1 / 5), rtol=1e-6)


def test_what_transformers_writes_is_the_same(tmp_path: Path) -> None:
    """It has `per_layer_config` in place of the fields of layers that see all."""
    path = make_checkpoint(tmp_path, "gemma4", tokenizer=False)
    fields = json.loads((path / "config.json").read_text())
    overrides = fields.pop("per_layer_config")
    assert set(overrides) == {"2", "4"}
    published = {**fields, "global_head_dim": 20, "num_global_key_value_heads": 3}
    made = read_blueprint(Fields(published, "config.json"))
    known = read_blueprint(Fields({**fields, "per_layer_config": overrides}, "config.json"))
    assert made == known
    assert sizes(made.config)[1:3] == [(2, 12, 88, -1), (3, 20, 88, -1)]


def test_heads_of_keys_and_values() -> None:
    """Fewer in layers that see all, where these make v of k, and only there."""
    assert sizes(read(num_global_key_value_heads=1)) == sizes(read())
    config = read(num_global_key_value_heads=1, attention_k_eq_v=True)
    assert sizes(config) == [(2, 10, 80, -1), (1, 16, 80, -1)] * 3
    found = blueprint(num_global_key_value_heads=1, attention_k_eq_v=True, attention_bias=True)
    sources = {rule.name: (rule.source, rule.shape) for rule in found.rules}
    prefix = "model.layers.1.self_attn"
    assert sources["layers.1.v.weight"] == (f"{prefix}.k_proj.weight", (16, 48))
    assert sources["layers.1.v.bias"] == (f"{prefix}.k_proj.bias", (16,))
    assert sources["layers.0.v.weight"] == ("model.layers.0.self_attn.v_proj.weight", (20, 48))


def test_shared_keys_and_values() -> None:
    config = read(num_kv_shared_layers=3)
    assert [shape.kv_layer for shape in config.layer_shapes] == [-1, -1, -1, 1, 2, 1]
    config = read(num_kv_shared_layers=2, use_double_wide_mlp=True)
    assert [shape.kv_layer for shape in config.layer_shapes] == [-1, -1, -1, -1, 2, 3]
    assert [shape.intermediate_size for shape in config.layer_shapes] == [80] * 4 + [160] * 2
    names = {rule.name for rule in blueprint(num_kv_shared_layers=2).rules}
    assert {"layers.3.k.weight", "layers.3.k_norm.weight", "layers.4.q_norm.weight"} <= names
    assert not names & {"layers.4.k.weight", "layers.4.v.weight", "layers.4.k_norm.weight"}


def test_without_inputs_of_layers() -> None:
    for size in (0, None):
        found = blueprint(hidden_size_per_layer_input=size, vocab_size_per_layer_input=7)
        assert (found.config.per_layer_embedding_size, found.config.per_layer_embedding_scale) == (
            0,
            1.0,
        )
        assert not any(
            "input_" in rule.name or "per_layer_embedding" in rule.name for rule in found.rules
        )


def test_what_google_leaves_out() -> None:
    config = read_blueprint(Fields({"model_type": "gemma4_text"}, "config.json")).config
    assert (config.n_layers, config.n_heads, config.vocab_size) == (30, 8, 262144)
    full = [layer for layer, window in enumerate(config.sliding_windows) if window == 0]
    assert full == [5, 11, 17, 23, 29]
    assert set(sizes(config)) == {(4, 256, 9216, -1), (4, 512, 9216, -1)}
    assert config.per_layer_embedding_size == 256
    with pytest.raises(ModelFormatError, match="vocab_size_per_layer_input is 262144"):
        read_blueprint(Fields({"model_type": "gemma4_text", "vocab_size": 262145}, "config.json"))


def test_a_larger_vocabulary_of_per_layer_embeddings(tmp_path: Path) -> None:
    """No token id reaches the last rows of the table, so that they are left out."""
    path = make_checkpoint(tmp_path, "gemma4", vocab_size=300, vocab_size_per_layer_input=333)
    table = load_file(path / "model.safetensors")["model.embed_tokens_per_layer.weight"]
    assert table.shape == (333, 50)
    loaded = open_model(path)
    assert loaded.config.vocab_size == 300
    np.testing.assert_array_equal(loaded.tensors[PER_LAYER_EMBEDDINGS].array, table[:300])


def test_the_last_layer_sees_all() -> None:
    config = read(layer_types=[SLIDING, FULL] * 2 + [SLIDING] * 2)
    assert config.sliding_windows == (16, 0, 16, 0, 16, 0)
    assert config.layer_shapes[5].head_dim == 16


OVERRIDE = "per_layer_config"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"enable_moe_block": True}, "num_experts is missing"),
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
        ({"global_head_dim": 7}, "full_attention: head_dim is 7; expected an even"),
        ({"global_head_dim": "512"}, "global_head_dim is '512'"),
        ({"num_global_key_value_heads": 4, "attention_k_eq_v": True}, "num_key_value_heads is 4"),
        ({"attention_k_eq_v": 1}, "attention_k_eq_v is 1"),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers is 6"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers is 5; .* of either type"),
        ({"num_kv_shared_layers": -1}, "num_kv_shared_layers is -1"),
        ({"use_double_wide_mlp": "yes"}, "use_double_wide_mlp is 'yes'"),
        ({"hidden_size_per_layer_input": -4}, "hidden_size_per_layer_input is -4"),
        ({"hidden_size_per_layer_input": 2**19}, "in all layers"),
        ({"vocab_size_per_layer_input": 99}, "vocab_size_per_layer_input is 99; .* from 100"),
        ({"final_logit_softcapping": 0.0}, "final_logit_softcapping is 0.0"),
        ({"sliding_window": None}, "sliding_window is None"),
        ({"layer_types": [FULL]}, "layer_types is .* a list of 6 layer types"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters: rope_theta is 10000.0"),
        ({"rope_parameters": {FULL: 3}}, "rope_parameters: full_attention is 3"),
        ({"rope_parameters": {FULL: {"rope_type": "proportional"}}}, "rope_theta is missing"),
        ({OVERRIDE: [1]}, "per_layer_config is"),
        ({OVERRIDE: {"6": {}}}, "per_layer_config is .* 0 to 5"),
        ({OVERRIDE: {"-1": {}}}, "per_layer_config is .* 0 to 5"),
        ({OVERRIDE: {"1": 4}}, "per_layer_config: 1 is 4; expected an object"),
        ({OVERRIDE: {"1": {"head_dim": -2}}}, "per_layer_config: 1: head_dim is -2"),
        ({OVERRIDE: {"1": {"sliding_window": 3}}}, "per_layer_config: 1: sliding_window is 3"),
        ({OVERRIDE: {"1": {"head_dim": 8}}}, "one head_dim in all full_attention layers"),
        (
            {OVERRIDE: {"5": {"num_key_value_heads": 3}}, "num_kv_shared_layers": 1},
            "per_layer_config: 5: head_dim is missing; expected the heads of layer 3",
        ),
    ],
)
def test_what_is_not_supported_or_absurd_is_refused_by_name(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelFormatError, match=f"^config.json: .*{said}"):
        read(**changes)


def test_the_shape_of_layers_that_are_alike() -> None:
    fields = {**BASE, "model_type": "gemma3_text", "query_pre_attn_scalar": 25}
    config = read_blueprint(Fields(fields, "config.json")).config
    assert config.layer_shapes == ()
    assert config.shape(3) == LayerShape(n_kv_heads=2, head_dim=10, intermediate_size=80)


def test_scales_of_a_live_module_are_buffers_of_it() -> None:
    module = make_module("gemma4")
    live = from_torch(module)
    for layer in range(5):
        scale = live.tensors[f"layers.{layer}.output_scale.weight"]
        np.testing.assert_array_equal(scale.array, module.model.layers[layer].layer_scalar.numpy())
        assert 0.5 < scale.array[0] < 1.5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scales_of_embeddings_are_rounded_as_in_transformers(dtype: str) -> None:
    config = from_torch(make_module("gemma4", dtype=dtype)).config
    for scale, width in ((config.embedding_scale, 48), (config.per_layer_embedding_scale, 10)):
        assert scale == torch.tensor(width**0.5).to(getattr(torch, dtype)).item()


def test_the_text_part_of_a_model_with_images_and_sounds(tmp_path: Path) -> None:
    text = make_checkpoint(tmp_path / "text", "gemma4", tokenizer=False)
    config = json.loads((text / "config.json").read_text())
    tensors = load_file(text / "model.safetensors")
    renamed = {
        name.replace("model.", "model.language_model."): array for name, array in tensors.items()
    }
    # Which published files have, and nothing reads.
    renamed["model.language_model.layers.4.self_attn.k_proj.weight"] = np.zeros(3, np.float32)
    for part in ("vision_tower", "embed_vision", "audio_tower"):
        renamed[f"model.{part}.weight"] = np.zeros(3, np.float32)
    whole = {"model_type": "gemma4", "text_config": config}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    save_file(renamed, tmp_path / "model.safetensors")
    said = r"only the text part of the gemma4 is loaded; left out: .*vision_tower \(1 tensors\)"
    with pytest.warns(UserWarning, match=said):
        loaded = open_model(tmp_path)
    known = open_model(text)
    assert loaded.config == known.config
    assert loaded.tensors.keys() == known.tensors.keys()
    for name, tensor in known.tensors.items():
        np.testing.assert_array_equal(loaded.tensors[name].array, tensor.array, err_msg=name)


def test_a_text_part_of_another_kind() -> None:
    fields = {"model_type": "gemma4", "text_config": {**BASE, "model_type": "gemma3_text"}}
    with pytest.raises(ModelFormatError, match="text_config: model_type is 'gemma3_text'"):
        read_blueprint(Fields(fields, "config.json"))
