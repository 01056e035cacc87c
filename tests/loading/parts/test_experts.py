from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pybatcher.errors import ModelFormatError
from pybatcher.loading import ModelConfig, open_model
from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.moe import MAX_EXPERTS_OF_MODEL, MoeConfig
from pybatcher.loading.families import read_blueprint
from pybatcher.testing.checkpoints import make_checkpoint

BASE = {
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
}
QWEN = {**BASE, "model_type": "qwen3_moe", "moe_intermediate_size": 24}
MIXTRAL = {**BASE, "model_type": "mixtral"}


def read(base: dict[str, Any], **changes: Any) -> ModelConfig:
    fields = {**base, **changes}
    fields = {name: value for name, value in fields.items() if value is not ...}
    return read_blueprint(Fields(fields, "config.json")).config


def moe_of(base: dict[str, Any], **changes: Any) -> MoeConfig:
    moe = read(base, **changes).moe
    assert moe is not None
    return moe


def test_what_config_json_says() -> None:
    assert read(QWEN).moe == MoeConfig(
        n_experts=8,
        n_experts_per_row=2,
        intermediate_size=24,
        normalised=False,
        in_layer=(True,) * 4,
    )
    assert read(MIXTRAL).moe == MoeConfig(
        n_experts=8,
        n_experts_per_row=2,
        intermediate_size=80,
        normalised=True,
        in_layer=(True,) * 4,
    )
    assert moe_of(QWEN, norm_topk_prob=True).normalised
    assert moe_of(QWEN, num_local_experts=..., num_experts=9).n_experts == 9
    assert (read(QWEN).norm_eps, read(MIXTRAL).norm_eps) == (1e-6, 1e-5)


def test_layers_with_experts() -> None:
    assert moe_of(QWEN, decoder_sparse_step=2).in_layer == (False, True, False, True)
    assert moe_of(QWEN, mlp_only_layers=[0, 3]).in_layer == (False, True, True, False)
    both = moe_of(QWEN, decoder_sparse_step=2, mlp_only_layers=[1, 2, 99])
    assert both.in_layer == (False, False, False, True)
    assert read(QWEN, decoder_sparse_step=9).moe is None


def test_sliding_windows() -> None:
    assert read(QWEN, sliding_window=16).sliding_windows == (0,) * 4
    assert read(QWEN, sliding_window=16, use_sliding_window=True).sliding_windows == (16,) * 4
    assert read(MIXTRAL, sliding_window=16).sliding_windows == (16,) * 4
    assert read(MIXTRAL).sliding_windows == (0,) * 4


@pytest.mark.parametrize("base", [QWEN, MIXTRAL])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_local_experts": 0}, "num_local_experts is 0; expected a whole number from 1"),
        ({"num_local_experts": ...}, "num_local_experts is missing"),
        ({"num_local_experts": 10**6}, "num_local_experts is 1000000"),
        ({"num_local_experts": ..., "num_experts": 10**6}, "num_experts is 1000000"),
        (
            {"num_local_experts": 4096, "num_hidden_layers": 17},
            f"num_local_experts is 4096; expected at most {MAX_EXPERTS_OF_MODEL} experts",
        ),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9; expected a whole number.* to 8"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok is 0"),
        ({"num_experts_per_tok": "2"}, "num_experts_per_tok is '2'"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
    ],
)
def test_what_is_refused(base: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read(base, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"moe_intermediate_size": 0}, "moe_intermediate_size is 0"),
        ({"moe_intermediate_size": ...}, "moe_intermediate_size is missing"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ({"mlp_only_layers": 3}, "mlp_only_layers is 3; expected a list of the numbers"),
        ({"mlp_only_layers": [True]}, r"mlp_only_layers is \[True\]"),
        ({"norm_topk_prob": 1}, "norm_topk_prob is 1"),
    ],
)
def test_what_is_refused_of_qwen3_moe(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read(QWEN, **changes)


# -- tensors ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("stored"), "qwen3_moe", tokenizer=False)


def changed(directory: Path, stored: Path, tensors: dict[str, np.ndarray]) -> Path:
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_bytes((stored / "config.json").read_bytes())
    return directory


def test_experts_may_be_stacked_on_disk(stored: Path, tmp_path: Path) -> None:
    tensors = load_file(stored / "model.safetensors")
    for layer in (0, 2):
        prefix = f"model.layers.{layer}.mlp.experts."
        parts = {
            part: np.stack([tensors.pop(f"{prefix}{i}.{part}_proj.weight") for i in range(6)])
            for part in ("gate", "up", "down")
        }
        tensors[f"{prefix}gate_up_proj"] = np.concatenate([parts["gate"], parts["up"]], axis=1)
        tensors[f"{prefix}down_proj"] = parts["down"]
    made = open_model(changed(tmp_path, stored, tensors)).tensors
    expected = open_model(stored).tensors
    assert made.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(made[name].array, tensor.array, err_msg=name)


def test_an_expert_that_is_missing(stored: Path, tmp_path: Path) -> None:
    tensors = load_file(stored / "model.safetensors")
    name = "model.layers.2.mlp.experts.3.up_proj.weight"
    del tensors[name]
    with pytest.raises(ModelFormatError, match=rf"{name} is missing; expected shape \[40, 48\]"):
        open_model(changed(tmp_path, stored, tensors))


def test_an_expert_of_another_shape(stored: Path, tmp_path: Path) -> None:
    tensors = load_file(stored / "model.safetensors")
    name = "model.layers.0.mlp.experts.5.down_proj.weight"
    tensors[name] = tensors[name][:, 1:].copy()
    with pytest.raises(ModelFormatError, match=r"found shape \[48, 39\]; expected \[48, 40\]"):
        open_model(changed(tmp_path, stored, tensors))


def test_stacked_experts_of_another_number(stored: Path, tmp_path: Path) -> None:
    tensors = load_file(stored / "model.safetensors")
    for expert in range(6):
        del tensors[f"model.layers.0.mlp.experts.{expert}.down_proj.weight"]
    tensors["model.layers.0.mlp.experts.down_proj"] = np.zeros((5, 48, 40), np.float32)
    with pytest.raises(ModelFormatError, match=r"shape \[5, 48, 40\]; expected \[6, 48, 40\]"):
        open_model(changed(tmp_path, stored, tensors))
