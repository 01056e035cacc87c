"""Experts beside the MLPs of Gemma 4; logits are compared in tests/system/models/test_oracle.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pybatcher.errors import ModelFormatError
from pybatcher.loading import ModelConfig, from_torch, open_model
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.moe import MAX_EXPERTS_OF_MODEL, MoeConfig
from pybatcher.loading.families import read_blueprint
from pybatcher.testing.checkpoints import make_checkpoint, make_module

MOE: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 3,
    "moe_intermediate_size": 40,
}
BASE = {
    "model_type": "gemma4_text",
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "hidden_size_per_layer_input": 0,
    **MOE,
}
LAYER = "model.layers.1."


def read(**changes: Any) -> ModelConfig:
    return read_blueprint(Fields({**BASE, **changes}, "config.json")).config


def test_what_config_json_says() -> None:
    assert read().moe == MoeConfig(
        n_experts=6,
        n_experts_per_row=3,
        intermediate_size=40,
        normalised=True,
        in_layer=(True,) * 4,
        beside_mlp=True,
    )
    assert read(enable_moe_block=False, top_k_experts=-1).moe is None


def test_layers_have_their_mlp_too() -> None:
    rules = read_blueprint(Fields(BASE, "config.json")).rules
    names = {rule.name for rule in rules}
    for layer in range(4):
        for part in ("gate", "experts.5.gate", "router_norm", "mlp_out_norm", "expert_scales"):
            assert f"layers.{layer}.{part}.weight" in names
    assert len(names) == len(rules)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"enable_moe_block": "yes"}, "enable_moe_block is 'yes'; expected true or false"),
        ({"num_experts": 0}, "num_experts is 0; expected a whole number from 1"),
        ({"num_experts": None}, "num_experts is None"),
        ({"num_experts": 2.0}, r"num_experts is 2\.0"),
        ({"num_experts": 10**6}, "num_experts is 1000000"),
        (
            {"num_experts": 4096, "num_hidden_layers": 17},
            f"num_experts is 4096; expected at most {MAX_EXPERTS_OF_MODEL} experts",
        ),
        ({"top_k_experts": 7}, "top_k_experts is 7; expected a whole number from 1 to 6"),
        ({"top_k_experts": 0}, "top_k_experts is 0"),
        ({"top_k_experts": None}, "top_k_experts is None"),
        ({"top_k_experts": True}, "top_k_experts is True"),
        ({"moe_intermediate_size": -1}, "moe_intermediate_size is -1"),
        ({"moe_intermediate_size": [40]}, r"moe_intermediate_size is \[40\]"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=f"^config.json: {said}"):
        read(**changes)


# -- tensors ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("stored")
    return make_checkpoint(directory, "gemma4", tokenizer=False, **MOE)


def test_a_live_module_has_the_tensors_of_its_checkpoint(stored: Path) -> None:
    module = make_module("gemma4", **MOE)
    live, known = from_torch(module), open_model(stored)
    assert live.config == known.config
    assert live.tensors.keys() == known.tensors.keys()
    for name, tensor in known.tensors.items():
        np.testing.assert_array_equal(live.tensors[name].array, tensor.array, err_msg=name)
    router = module.model.layers[1].router
    scale = router.scale.detach().numpy()
    found = known.tensors["layers.1.router_norm.weight"].array
    np.testing.assert_allclose(found, scale / np.sqrt(48), rtol=1e-6)
    scales = router.per_expert_scale.detach().numpy()
    np.testing.assert_array_equal(known.tensors["layers.1.expert_scales.weight"].array, scales)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("router.scale", "[48]"),
        ("router.per_expert_scale", "[6]"),
        ("router.proj.weight", "[6, 48]"),
        ("experts.gate_up_proj", "[6, 80, 48]"),
        ("experts.down_proj", "[6, 48, 40]"),
        ("mlp.up_proj.weight", "[88, 48]"),
        ("pre_feedforward_layernorm_2.weight", "[48]"),
        ("post_feedforward_layernorm_1.weight", "[48]"),
        ("post_feedforward_layernorm_2.weight", "[48]"),
    ],
)
def test_tensors_that_do_not_fit(name: str, shape: str, stored: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((stored / "config.json").read_bytes())
    tensors = load_file(stored / "model.safetensors")
    weight = tensors.pop(LAYER + name)

    def refusal() -> str:
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(ModelFormatError) as caught:
            open_model(tmp_path)
        assert LAYER + name in str(caught.value)
        return str(caught.value)

    assert f"is missing; expected shape {shape}" in refusal()
    tensors[LAYER + name] = np.concatenate([weight, weight[:1]])
    assert f"found shape {list(tensors[LAYER + name].shape)}; expected {shape}" in refusal()
    tensors[LAYER + name] = weight.astype(np.int32)
    assert "found dtype I32" in refusal()
