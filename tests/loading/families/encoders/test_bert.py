from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
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
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}


def read(model_type: str = "bert", **changes: Any) -> ModelConfig:
    fields = {**BASE, "model_type": model_type, **changes}
    return read_blueprint(Fields(fields, "config.json")).config


def test_what_config_json_says() -> None:
    config = read()
    assert config == ModelConfig(
        architecture="bert",
        vocab_size=100,
        hidden_size=48,
        n_layers=2,
        n_heads=6,
        n_kv_heads=6,
        head_dim=8,
        intermediate_size=80,
        max_position_embeddings=64,
        norm="layer",
        norm_eps=1e-12,
        activation="gelu",
        gated_mlp=False,
        position="learned",
        ropes=(),
        layer_ropes=(-1, -1),
        attention_scale=8**-0.5,
        sliding_windows=(0, 0),
        causal=False,
        residual_norms="all",
    )
    roberta = replace(config, architecture="roberta", max_position_embeddings=62)
    assert read("roberta") == roberta
    assert read("xlm-roberta", pad_token_id=0).max_position_embeddings == 63
    assert read(hidden_act="gelu_new").activation == "gelu_tanh"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads is 5; expected a divisor of hidden_size"),
        ({"hidden_size": 2**14, "num_attention_heads": 1}, "num_attention_heads is 1"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; expected one of 'gelu'"),
        ({"hidden_act": None}, "hidden_act is None"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"type_vocab_size": 0}, "type_vocab_size is 0"),
        ({"layer_norm_eps": -1}, "layer_norm_eps is -1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": "100"}, "vocab_size is '100'"),
        ({"model_type": "roberta", "pad_token_id": None}, "pad_token_id is None"),
        ({"model_type": "roberta", "pad_token_id": 64}, "max_position_embeddings is 64"),
        ({"architectures": ["BertForSequenceClassification"]}, "'BertModel', .* classify nor rank"),
        ({"architectures": ["BertLMHeadModel"]}, "architectures is "),
        ({"architectures": "BertModel"}, "architectures is 'BertModel'"),
        ({"architectures": [["BertModel"]]}, "architectures is "),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised by 'awq'"),
    ],
)
def test_what_is_not_supported_or_absurd_is_refused_by_name(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelFormatError, match=f"^config.json: .*{said}"):
        read(**changes)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [("bert", "Bert"), ("roberta", "Roberta"), ("xlm_roberta", "XLMRoberta")],
)
def test_names_with_and_without_a_prefix_and_a_pooler(
    architecture: str, name: str, tmp_path: Path
) -> None:
    """As a model without a head, and as one of masked tokens, whose head is left out."""
    module = make_module(architecture, seed=4)
    assert any("pooler" in key for key, _ in module.named_parameters())
    masked = getattr(transformers, f"{name}ForMaskedLM")(module.config)
    bare = getattr(masked, masked.base_model_prefix)
    bare.load_state_dict(module.state_dict(), strict=False)
    expected = from_torch(module)
    module.save_pretrained(tmp_path / "bare")
    masked.save_pretrained(tmp_path / "masked")
    found = [from_torch(masked), open_model(tmp_path / "bare"), open_model(tmp_path / "masked")]
    for model in found:
        assert (model.config, model.generates) == (expected.config, False)
        assert model.tensors.keys() == expected.tensors.keys()
        for key, tensor in model.tensors.items():
            np.testing.assert_array_equal(tensor.array, expected.tensors[key].array)


@pytest.mark.parametrize(("architecture", "first"), [("bert", 0), ("roberta", 2)])
def test_positions_have_the_type_added(architecture: str, first: int) -> None:
    module = make_module(architecture, seed=4)
    positions = from_torch(module).tensors["position_embedding"].array
    tables = module.embeddings
    with torch.no_grad():
        sums = tables.position_embeddings.weight + tables.token_type_embeddings.weight[0]
    np.testing.assert_array_equal(positions, sums.numpy()[first:])


def test_old_names_of_norms(tmp_path: Path) -> None:
    """As bert-base-uncased is published: gamma and beta, and a buffer of positions."""
    make_checkpoint(tmp_path, "bert", tokenizer=False)
    expected = open_model(tmp_path)
    file = tmp_path / "model.safetensors"
    renamed = {}
    for name, tensor in load_file(file).items():
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        renamed[f"bert.{old.replace('LayerNorm.bias', 'LayerNorm.beta')}"] = tensor
    renamed["bert.embeddings.position_ids"] = np.arange(64)[None]
    save_file(renamed, file)
    found = open_model(tmp_path)
    for key, tensor in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[key].array, tensor.array)


def test_tensors_that_do_not_fit(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "bert", tokenizer=False)
    file = tmp_path / "model.safetensors"
    whole = load_file(file)
    types = "embeddings.token_type_embeddings.weight"
    save_file({key: value for key, value in whole.items() if key != types}, file)
    with pytest.raises(ModelFormatError, match=rf"{types} is missing; expected shape \[2, 60\]"):
        open_model(tmp_path)
    save_file({**whole, types: whole[types][:1]}, file)
    with pytest.raises(ModelFormatError, match=r"found shape \[1, 60\]; expected \[2, 60\]"):
        open_model(tmp_path)
    norm = "encoder.layer.1.output.LayerNorm.bias"
    save_file({key: value for key, value in whole.items() if key != norm}, file)
    with pytest.raises(ModelFormatError, match=f"{norm} is missing"):
        open_model(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "max_position_embeddings": 9}))
    save_file(whole, file)
    with pytest.raises(ModelFormatError, match=r"position_embeddings.*expected \[9, 60\]"):
        open_model(tmp_path)
