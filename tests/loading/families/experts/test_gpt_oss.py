from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpt_oss_files import write_mxfp4
from safetensors.numpy import load_file, save_file

from pybatcher.errors import ModelFormatError
from pybatcher.loading import ModelConfig, open_model
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.moe import MAX_EXPERTS_OF_MODEL, MoeConfig
from pybatcher.loading.families import read_blueprint
from pybatcher.testing.checkpoints import make_checkpoint

BASE = {
    "model_type": "gpt_oss",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
}
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}
TRUNCATED = {**YARN, "beta_fast": 32.0, "beta_slow": 1.0}


def read(**changes: Any) -> ModelConfig:
    fields = {**BASE, **changes}
    fields = {name: value for name, value in fields.items() if value is not ...}
    return read_blueprint(Fields(fields, "config.json")).config


def test_what_config_json_says() -> None:
    config = read()
    assert config.moe == MoeConfig(
        n_experts=8,
        n_experts_per_row=2,
        intermediate_size=96,
        normalised=True,
        in_layer=(True,) * 4,
        swiglu_limit=7.0,
        swiglu_alpha=1.702,
    )
    assert (config.head_dim, config.norm_eps) == (64, 1e-5)
    assert config.sliding_windows == (128, 0, 128, 0)
    assert read(sliding_window=16).sliding_windows == (16, 0, 16, 0)
    kinds = ["full_attention", "full_attention", "full_attention", "sliding_attention"]
    assert read(layer_types=kinds).sliding_windows == (0, 0, 0, 128)
    changed = read(swiglu_limit=3.0, swiglu_alpha=1.5).moe
    assert changed is not None
    assert (changed.swiglu_limit, changed.swiglu_alpha) == (3.0, 1.5)


def test_rotary_frequencies_without_truncation_by_default() -> None:
    """As published: `rope_scaling`; by default: the same."""
    published = read(rope_theta=150000, rope_scaling={**TRUNCATED, "truncate": False})
    assert published.ropes == read().ropes
    assert published.ropes[0].attention_factor == pytest.approx(1.3466, abs=1e-4)
    truncated = read(rope_theta=150000, rope_scaling=TRUNCATED)
    assert truncated.ropes != read().ropes
    assert read(rope_theta=1e4).ropes != read().ropes


def test_biases_and_sinks() -> None:
    def names(**changes: Any) -> set[str]:
        blueprint = read_blueprint(Fields({**BASE, **changes}, "config.json"))
        return {rule.name for rule in blueprint.rules}

    assert {f"layers.3.{part}.bias" for part in "qkvo"} <= names()
    assert not {f"layers.3.{part}.bias" for part in "qkvo"} & names(attention_bias=False)
    parts = ("sinks.weight", "router.bias", "experts.7.gate.bias", "experts.7.down.bias")
    assert {f"layers.3.{part}" for part in parts} <= names(attention_bias=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_local_experts": 0}, "num_local_experts is 0; expected a whole number from 1"),
        ({"num_local_experts": ...}, "num_local_experts is missing"),
        ({"num_local_experts": 10**6}, "num_local_experts is 1000000"),
        (
            {"num_local_experts": 4096, "num_hidden_layers": 17},
            f"num_local_experts is 4096; expected at most {MAX_EXPERTS_OF_MODEL} experts",
        ),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9; expected a whole number.* to 8"),
        ({"num_experts_per_tok": ...}, "num_experts_per_tok is missing"),
        ({"num_experts_per_tok": "2"}, "num_experts_per_tok is '2'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"sliding_window": 0}, "sliding_window is 0"),
        ({"sliding_window": "128"}, "sliding_window is '128'"),
        ({"layer_types": ["full_attention"]}, "layer_types is .*; expected a list of 4"),
        ({"layer_types": 7}, "layer_types is 7"),
        ({"swiglu_limit": 0}, "swiglu_limit is 0; expected a number from 0.001"),
        ({"swiglu_limit": "7"}, "swiglu_limit is '7'"),
        ({"swiglu_limit": float("nan")}, "swiglu_limit is nan"),
        ({"swiglu_alpha": -1.0}, r"swiglu_alpha is -1\.0"),
        ({"attention_bias": 1}, "attention_bias is 1; expected true or false"),
        ({"head_dim": 63}, "head_dim is 63"),
        ({"head_dim": 2**40}, "head_dim is 1099511627776"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"intermediate_size": 2**40}, "intermediate_size is 1099511627776"),
        ({"rope_scaling": 3}, "rope_scaling is 3; expected an object"),
        ({"rope_scaling": {**YARN, "truncate": 0}}, "truncate is 0; expected true or false"),
        ({"rope_theta": "x"}, "rope_theta is 'x'"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None"),
        ({"quantization_config": {"quant_method": "gptq"}}, "weights quantised by 'gptq'"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read(**changes)


def test_mxfp4_is_read_of_gpt_oss_alone() -> None:
    quantised = {"quantization_config": {"quant_method": "mxfp4"}}
    assert read(**quantised) == read()
    with pytest.raises(ModelFormatError, match="weights quantised by 'mxfp4'"):
        read(**quantised, model_type="mixtral")


# -- tensors ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stored")
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    return write_mxfp4(make_checkpoint(root / "plain", "gpt_oss", **shape), root / "mxfp4")


def changed(directory: Path, stored: Path, tensors: dict[str, np.ndarray]) -> Path:
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_bytes((stored / "config.json").read_bytes())
    return directory


def test_gates_and_ups_lie_in_turns(stored: Path) -> None:
    tensors = load_file(stored / "model.safetensors")
    model = open_model(stored)
    prefix = "model.layers.1.mlp.experts.gate_up_proj"
    for first, part in enumerate(("gate", "up")):
        found = model.tensors[f"layers.1.experts.2.{part}.weight"]
        assert (found.dtype, found.shape) == ("mxfp4_parts", (96, 64))
        blocks = tensors[f"{prefix}_blocks"][2, first::2]
        np.testing.assert_array_equal(found.array, blocks.reshape(96, -1))
        assert found.scales is not None
        np.testing.assert_array_equal(found.scales, tensors[f"{prefix}_scales"][2, first::2])
        bias = model.tensors[f"layers.1.experts.2.{part}.bias"]
        np.testing.assert_array_equal(bias.array, tensors[f"{prefix}_bias"][2, first::2])


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("mlp.experts.gate_up_proj_blocks", None, r"gate_up_proj_blocks is missing"),
        ("mlp.experts.gate_up_proj_scales", None, "gate_up_proj_scales is missing"),
        ("mlp.experts.down_proj_bias", None, r"down_proj_bias is missing; .* \[6, 64\]"),
        ("self_attn.sinks", None, r"self_attn.sinks is missing; expected shape \[6\]"),
        ("mlp.router.bias", None, r"router.bias is missing; expected shape \[6\]"),
        ("self_attn.sinks", lambda x: x[1:], r"found shape \[5\]; expected \[6\]"),
        (
            "mlp.experts.down_proj_bias",
            lambda x: x[:5],
            r"down_proj_bias.*found shape \[5, 64\]; expected \[6, 64\]",
        ),
        (
            "mlp.router.bias",
            lambda x: x.astype(np.uint8),
            "router.bias.*found dtype U8; expected one of f32, f16, bf16$",
        ),
    ],
)
def test_tensors_that_do_not_fit(
    name: str, damage: Any, said: str, stored: Path, tmp_path: Path
) -> None:
    tensors = load_file(stored / "model.safetensors")
    array = tensors.pop(f"model.layers.1.{name}")
    if damage is not None:
        tensors[f"model.layers.1.{name}"] = np.ascontiguousarray(damage(array))
    with pytest.raises(ModelFormatError, match=said):
        open_model(changed(tmp_path, stored, tensors))


def test_experts_of_another_number(stored: Path, tmp_path: Path) -> None:
    tensors = load_file(stored / "model.safetensors")
    prefix = "model.layers.0.mlp.experts.down_proj_"
    for part in ("blocks", "scales"):
        tensors[prefix + part] = tensors[prefix + part][:5]
    with pytest.raises(ModelFormatError, match=r"shape \[5, 64, 96\]; expected \[6, 64, 96\]"):
        open_model(changed(tmp_path, stored, tensors))
