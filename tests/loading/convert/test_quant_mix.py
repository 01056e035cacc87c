"""Which type each matrix gets: as llama.cpp's quantiser (llama-cpp-python 0.3.36) chose it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pybatcher.loading import LoadedModel, open_model
from pybatcher.loading.checkpoints.moe import MoeConfig
from pybatcher.loading.checkpoints.tensors import Tensor
from pybatcher.loading.convert.quant_mix import MIXTURES, convert_to_mixture, mixture_dtypes
from pybatcher.testing.checkpoints import make_checkpoint

WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
EIGHT: dict[str, Any] = {
    "n_experts": 8,
    "n_experts_per_row": 2,
    "intermediate_size": 256,
    "normalised": True,
    "in_layer": (True, True),
}
FINER_LAYERS = {2: {1}, 11: {0, 3, 6, 9, 10}, 16: {0, 1, 4, 7, 10, 13, 14, 15}}


def model(path: Path, n_layers: int = 2, **changes: Any) -> LoadedModel:
    shape = {**WIDE, "num_attention_heads": 4, "num_key_value_heads": 2, **changes}
    return open_model(make_checkpoint(path, "llama", num_hidden_layers=n_layers, **shape))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return model(tmp_path_factory.mktemp("small") / "llama")


def layers_of(dtypes: dict[str, str], part: str, dtype: str) -> set[int]:
    names = [name for name, found in dtypes.items() if f".{part}." in name and found == dtype]
    return {int(name.split(".")[1]) for name in names}


@pytest.mark.parametrize("n_layers", FINER_LAYERS)
@pytest.mark.parametrize("mixture", MIXTURES)
def test_some_layers_have_finer_values_and_outputs(
    n_layers: int, mixture: str, small: LoadedModel
) -> None:
    tensors = {
        f"layers.{layer}.{part}.weight": small.tensors[f"layers.0.{part}.weight"]
        for layer in range(n_layers)
        for part in ("q", "k", "v", "o", "gate", "up", "down")
    }
    found = mixture_dtypes(tensors, mixture, replace(small.config, n_layers=n_layers))
    all_layers = set(range(n_layers))
    for part in ("q", "k", "o", "gate", "up"):
        assert layers_of(found, part, MIXTURES[mixture]) == all_layers
    finer = all_layers if mixture == "q6_k" else FINER_LAYERS[n_layers]
    for part in ("v", "down"):
        assert layers_of(found, part, "q6_k") == finer
        rest = layers_of(found, part, MIXTURES[mixture])
        assert rest == (finer if mixture == "q6_k" else all_layers - finer)


@pytest.mark.parametrize(("tied", "embedding"), [(False, "q4_k"), (True, "q6_k")])
def test_what_makes_logits_is_finer(tied: bool, embedding: str, small: LoadedModel) -> None:
    tensors = dict(small.tensors)
    if tied:
        del tensors["head.weight"]
    found = mixture_dtypes(tensors, "q4_k_m", small.config)
    assert found["token_embedding"] == embedding
    assert found.get("head.weight", "q6_k") == "q6_k"
    assert not [name for name in found if "norm" in name]


def test_mixtures_of_eight_experts_have_finer_attention(small: LoadedModel) -> None:
    config = replace(small.config, moe=MoeConfig(**EIGHT))
    weight = small.tensors["layers.0.down.weight"]
    tensors = {
        **small.tensors,
        "layers.1.router.weight": weight,
        "layers.1.experts.3.down.weight": weight,
        "layers.1.experts.3.up.weight": weight,
    }
    found = mixture_dtypes(tensors, "q4_k_m", config)
    parts = {"q": "q4_k", "k": "int8", "v": "int8", "o": "q5_k"}
    assert {part: found[f"layers.1.{part}.weight"] for part in parts} == parts
    assert found["layers.1.experts.3.down.weight"] == "q6_k"
    assert found["layers.1.experts.3.up.weight"] == "q4_k"
    assert "layers.1.router.weight" not in found
    assert mixture_dtypes(tensors, "q5_k_m", config)["layers.1.o.weight"] == "q5_k"


def test_values_of_70b_are_finer(small: LoadedModel) -> None:
    tensors = {f"layers.40.{part}.weight": small.tensors["layers.0.q.weight"] for part in "kv"}
    found = mixture_dtypes(tensors, "q4_k_m", replace(small.config, n_layers=80))
    assert list(found.values()) == ["q4_k", "q5_k"]


class Quantiser:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []

    def __call__(self, name: str, tensor: tuple[NDArray[Any], str], dtype: str) -> NDArray[Any]:
        self.asked.append((name, tensor[1], dtype))
        return np.zeros((1, 144), np.uint8)


@pytest.fixture
def quantise() -> Quantiser:
    return Quantiser()


def test_matrices_are_quantised_when_they_are_packed(
    small: LoadedModel, quantise: Quantiser
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        entries, native = convert_to_mixture(
            small.tensors, "q4_k_m", small.config, "here", quantise
        )
    assert native == set(mixture_dtypes(small.tensors, "q4_k_m", small.config))
    assert not quantise.asked
    function, dtype, *shape = entries["layers.1.down.weight"]
    assert (dtype, shape) == ("q6_k", [256, 256])
    function()
    assert quantise.asked == [("layers.1.down.weight", "f32", "q6_k")]
    assert entries["final_norm.weight"][1] == "f32"


def test_blocks_of_a_file_are_kept_or_read(small: LoadedModel, quantise: Quantiser) -> None:
    q4_k = Tensor(np.zeros((256, 144), np.uint8), "q4_k", "file")
    q5_0 = Tensor(np.zeros((256, 8 * 22), np.uint8), "q5_0", "file")
    int8 = Tensor(np.zeros((256, 8 * 34), np.uint8), "int8", "file")
    tensors = {"layers.0.q.weight": q4_k, "layers.0.k.weight": q5_0, "layers.0.o.weight": int8}
    entries, _ = convert_to_mixture(tensors, "q4_k_m", small.config, "here", quantise)
    assert entries["layers.0.q.weight"] == (q4_k.array, "q4_k")
    entries["layers.0.k.weight"][0]()
    entries["layers.0.o.weight"][0]()
    assert [asked[1] for asked in quantise.asked] == ["q5_0", "int8"]


def test_rows_that_are_no_whole_super_blocks_are_int8(tmp_path: Path, quantise: Quantiser) -> None:
    odd = model(tmp_path / "odd", hidden_size=192)
    with pytest.warns(UserWarning, match="here: 12 of 16 matrices are int8 instead: .* of 256"):
        entries, native = convert_to_mixture(odd.tensors, "q4_k_m", odd.config, "here", quantise)
    assert native == {"layers.0.down.weight", "layers.1.down.weight", "layers.0.o.weight"} | {
        "layers.1.o.weight"
    }
    assert entries["layers.0.q.weight"][1] == "f32"  # for the engine to round


def test_gates_and_convolutions_of_recurrent_layers_stay_plain(tmp_path: Path) -> None:
    opened = open_model(make_checkpoint(tmp_path, "qwen3_5", tokenizer=False, hidden_size=256))
    found = mixture_dtypes(opened.tensors, "q4_k_m", opened.config)
    recurrent = {
        name.split(".gated_delta_net.")[1] for name in found if ".gated_delta_net." in name
    }
    assert recurrent == {"qkv.weight", "z.weight", "o.weight"}
    assert found["layers.0.gated_delta_net.qkv.weight"] == "q4_k"
    assert found["layers.1.attn_gate.weight"] == "q4_k"
