from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from pybatcher.errors import ModelFormatError
from pybatcher.loading import ModelConfig, from_torch, open_model
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.families import read_blueprint
from pybatcher.testing.checkpoints import make_module

BASE = {
    "model_type": "modernbert",
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}


def read(**changes: Any) -> ModelConfig:
    return read_blueprint(Fields({**BASE, **changes}, "config.json")).config


def test_what_config_json_says() -> None:
    config = read()
    assert config == ModelConfig(
        architecture="modernbert",
        vocab_size=100,
        hidden_size=48,
        n_layers=5,
        n_heads=6,
        n_kv_heads=6,
        head_dim=8,
        intermediate_size=80,
        max_position_embeddings=64,
        norm="layer",
        norm_eps=1e-5,
        activation="gelu",
        gated_mlp=True,
        position="rope",
        ropes=config.ropes,
        layer_ropes=(0, 1, 1, 0, 1),
        attention_scale=8**-0.5,
        sliding_windows=(0, 65, 65, 0, 65),
        causal=False,
        norm_bias=False,
        residual_norms="first",
    )
    thetas = [rope.inv_freq[1] ** -4 for rope in config.ropes]
    np.testing.assert_allclose(thetas, (1.6e5, 1e4), rtol=1e-5)


def test_both_forms_of_layers_and_frequencies() -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    ropes = {
        "full_attention": {"rope_type": "default", "rope_theta": 100.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
    }
    new = read(num_hidden_layers=3, layer_types=kinds, rope_parameters=ropes, local_attention=9)
    assert (new.layer_ropes, new.sliding_windows) == ((1, 0, 1), (5, 0, 5))
    old = read(num_hidden_layers=3, global_rope_theta=100.0, local_rope_theta=10.0)
    assert new.ropes == old.ropes
    every = read(global_attn_every_n_layers=2)
    assert every == replace(read(), layer_ropes=(0, 1, 0, 1, 0), sliding_windows=(0, 65, 0, 65, 0))
    alike = read(local_rope_theta=None)
    assert alike == read()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu'; expected one of 'gelu'"),
        ({"num_attention_heads": 5}, "num_attention_heads is 5; expected a divisor"),
        ({"num_attention_heads": 16}, "head_dim"),
        ({"local_attention": 0}, "local_attention is 0"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers is 0"),
        ({"layer_types": ["full_attention"]}, "layer_types is .* a list of 5 layer types"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling is"),
        ({"norm_bias": 1}, "norm_bias is 1"),
        ({"architectures": ["ModernBertForTokenClassification"]}, "architectures is "),
    ],
)
def test_what_is_not_supported_or_absurd_is_refused_by_name(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelFormatError, match=f"^config.json: .*{said}"):
        read(**changes)


@pytest.mark.parametrize("biased", [False, True])
def test_tensors_of_files_and_of_live_modules(biased: bool, tmp_path: Path) -> None:
    biases = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), biased)
    module = make_module("modernbert", seed=5, **biases)
    masked = transformers.ModernBertForMaskedLM(module.config)
    masked.model.load_state_dict(module.state_dict())
    expected = from_torch(module)
    assert ("layers.0.gate.bias" in expected.tensors) is biased
    assert ("final_norm.bias" in expected.tensors) is biased
    module.save_pretrained(tmp_path / "bare")
    masked.save_pretrained(tmp_path / "masked")
    for model in (open_model(tmp_path / "bare"), open_model(tmp_path / "masked")):
        assert (model.config, model.generates) == (expected.config, False)
        assert model.tensors.keys() == expected.tensors.keys()
        for key, tensor in model.tensors.items():
            np.testing.assert_array_equal(tensor.array, expected.tensors[key].array)
