from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pybatcher.errors import ModelFormatError
from pybatcher.loading import from_torch
from pybatcher.loading.safetensors.sentence_transformers import (
    lowers_texts,
    read_embedding_defaults,
)
from pybatcher.params.embedding_defaults import EmbeddingDefaults
from pybatcher.testing.checkpoints import make_module

TRANSFORMER = {
    "idx": 0,
    "name": "0",
    "path": "",
    "type": "sentence_transformers.models.Transformer",
}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
LAST = {
    "word_embedding_dimension": 1024,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": False,
    "pooling_mode_lasttoken": True,
    "include_prompt": True,
}
DENSE = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
IDENTITY = "torch.nn.modules.linear.Identity"
TANH = "torch.nn.modules.activation.Tanh"
CONFIG = from_torch(make_module("qwen3")).config
WIDTH = CONFIG.hidden_size
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": None}


def read(directory: Path, *modules: Any, pooling: Any = LAST) -> EmbeddingDefaults:
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (directory / "modules.json").write_text(json.dumps(modules))
    return read_embedding_defaults(directory, CONFIG)


def test_what_the_files_say(tmp_path: Path) -> None:
    assert read_embedding_defaults(tmp_path, CONFIG) == EmbeddingDefaults("last", False)
    encoder = from_torch(make_module("bert"))
    assert read_embedding_defaults(tmp_path, encoder.config) == EmbeddingDefaults("mean", False)
    assert encoder.embedding == EmbeddingDefaults("mean", False)
    whole = (TRANSFORMER, POOLING, NORMALIZE)
    assert read(tmp_path, *whole) == EmbeddingDefaults("last", True)
    assert read(tmp_path, *whole[:2], pooling=MEAN) == EmbeddingDefaults("mean", False)
    newer = {"embedding_dimension": 8, "pooling_mode": "mean"}
    assert read(tmp_path, *whole, pooling=newer) == EmbeddingDefaults("mean", True)
    newer["pooling_mode"] = "lasttoken"
    assert read(tmp_path, *whole, pooling=newer) == EmbeddingDefaults("last", True)
    first = {"pooling_mode_cls_token": True}
    assert read(tmp_path, *whole, pooling=first) == EmbeddingDefaults("cls", True)


def write(directory: Path, name: str, **fields: Any) -> None:
    (directory / name).write_text(json.dumps(fields))


def test_settings_of_texts(tmp_path: Path) -> None:
    whole = (TRANSFORMER, POOLING)
    write(tmp_path, "tokenizer_config.json", model_max_length=512.0, truncation_side="left")
    assert read(tmp_path, *whole) == EmbeddingDefaults("last", max_tokens=512, cuts_left=True)
    write(tmp_path, "sentence_bert_config.json", max_seq_length=128, do_lower_case=True)
    assert lowers_texts(tmp_path)
    assert read(tmp_path, *whole).max_tokens == 128
    arguments = {"model_max_length": 64, "truncation_side": "right", "padding_side": "left"}
    write(tmp_path, "sentence_bert_config.json", max_seq_length=128, tokenizer_args=arguments)
    assert not lowers_texts(tmp_path)
    found = read(tmp_path, *whole)
    assert (found.max_tokens, found.cuts_left) == (64, False)
    write(tmp_path, "sentence_bert_config.json")
    write(tmp_path, "tokenizer_config.json", model_max_length=10**30)
    write(
        tmp_path,
        "config_sentence_transformers.json",
        truncate_dim=4,
        prompts={"query": "q: ", "document": ""},
        default_prompt_name="query",
    )
    found = read(tmp_path, *whole)
    assert (found.max_tokens, found.dimensions, found.prompt) == (0, 4, "q: ")
    assert found.with_pooling("mean") == EmbeddingDefaults("mean")
    (tmp_path / "modules.json").unlink()
    assert read_embedding_defaults(tmp_path, CONFIG) == EmbeddingDefaults("last")


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length is 0; expected"),
        ("sentence_bert_config.json", {"max_seq_length": "9"}, "max_seq_length is '9'; expected"),
        ("sentence_bert_config.json", {"do_lower_case": 1}, "do_lower_case is 1; expected true"),
        ("sentence_roberta_config.json", {"query_length": 32}, "query_length is 32; expected no"),
        (
            "sentence_bert_config.json",
            {"transformer_task": "text-generation"},
            "transformer_task is 'text-generation'; expected 'feature-extraction'",
        ),
        (
            "sentence_bert_config.json",
            {"config_args": {"is_causal": False}},
            "config_args: is_causal is False; expected no such argument",
        ),
        ("sentence_bert_config.json", {"modality_config": {"message": {}}}, "modality_config is"),
        ("config_sentence_transformers.json", {"truncate_dim": -1}, "truncate_dim is -1"),
        (
            "config_sentence_transformers.json",
            {"default_prompt_name": "query"},
            "prompts: query is missing",
        ),
        ("tokenizer_config.json", {"truncation_side": "up"}, "truncation_side is 'up'; expected"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt of the pooling"),
        ("2_Normalize/config.json", {"module_input_name": "x"}, "module_input_name is 'x'"),
    ],
)
def test_settings_that_are_refused(
    name: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "2_Normalize").mkdir()
    pooling = LAST
    if name.startswith("1"):
        prompts = {"prompts": {"q": "q: "}, "default_prompt_name": "q"}
        write(tmp_path, "config_sentence_transformers.json", **prompts)
        pooling = {**LAST, **fields}
    else:
        write(tmp_path, name, **fields)
    modules = (TRANSFORMER, POOLING, NORMALIZE)
    with pytest.raises(ModelFormatError, match=message):
        _ = read(tmp_path, *modules, pooling=pooling), lowers_texts(tmp_path)


def write_dense(
    directory: Path, n_in: int, n_out: int, *, bias: bool, activation: str = IDENTITY
) -> dict[str, Any]:
    """Write a Dense module's folder; return its tensors."""
    directory.mkdir(exist_ok=True)
    rng = np.random.default_rng(n_in)
    tensors = {"linear.weight": rng.normal(0, 0.3, (n_out, n_in)).astype(np.float32)}
    if bias:
        tensors["linear.bias"] = rng.normal(0, 1, n_out).astype(np.float32)
    fields = {"in_features": n_in, "out_features": n_out, "bias": bias}
    (directory / "config.json").write_text(
        json.dumps({**fields, "activation_function": activation})
    )
    save_file(tensors, directory / "model.safetensors")
    return tensors


def test_dense_layers(tmp_path: Path) -> None:
    wide = write_dense(tmp_path / "2_Dense", WIDTH, 70, bias=True, activation=TANH)
    narrow = write_dense(tmp_path / "3_Dense", 70, 11, bias=False)
    found = read(tmp_path, TRANSFORMER, POOLING, DENSE, {**DENSE, "path": "3_Dense"}, NORMALIZE)
    assert (found.pooling, found.normalised) == ("last", True)
    vector = np.random.default_rng(3).normal(0, 1, WIDTH).astype(np.float32)
    hidden = np.tanh(wide["linear.weight"] @ vector + wide["linear.bias"])
    assert found.head is not None
    np.testing.assert_allclose(found.head(vector), narrow["linear.weight"] @ hidden, rtol=1e-4)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"in_features": WIDTH + 1}, f"in_features is {WIDTH + 1}; expected {WIDTH}"),
        ({"out_features": 9}, rf"expected \[9, {WIDTH}\]"),
        ({"out_features": 0}, "out_features is 0"),
        ({"bias": True}, r"linear\.bias is missing"),
        ({"bias": 1}, "bias is 1"),
        ({"activation_function": "torch.nn.modules.activation.ReLU"}, "ReLU'; expected 'torch"),
        ({"activation_function": 3}, "activation_function is 3"),
        ("weights", r"model\.safetensors: no such file"),
        ("numbers", "not finite"),
    ],
)
def test_dense_layers_that_are_damaged(damage: Any, said: str, tmp_path: Path) -> None:
    tensors = write_dense(tmp_path / "2_Dense", WIDTH, 8, bias=False)
    config, weights = tmp_path / "2_Dense/config.json", tmp_path / "2_Dense/model.safetensors"
    if damage == "weights":
        weights.unlink()
    elif damage == "numbers":
        tensors["linear.weight"][2, 3] = np.inf
        save_file(tensors, weights)
    else:
        config.write_text(json.dumps({**json.loads(config.read_text()), **damage}))
    with pytest.raises(ModelFormatError, match=said):
        read(tmp_path, TRANSFORMER, POOLING, DENSE)


@pytest.mark.parametrize(
    ("modules", "pooling", "said"),
    [
        ((TRANSFORMER,), LAST, "modules.json: texts are pooled by ''; expected 'lasttoken' or"),
        ((POOLING,), {"pooling_mode_max_tokens": True}, "pooled by 'max'"),
        ((DENSE, POOLING), LAST, "2_Dense/config.json: no such file"),
        ((NORMALIZE, POOLING), LAST, "no Pooling after a Normalize module"),
        ((POOLING, NORMALIZE, DENSE), LAST, "no Dense after a Normalize module"),
        ((POOLING,), {**LAST, **MEAN, "pooling_mode_lasttoken": True}, r"by 'lasttoken\+mean'"),
        ((POOLING,), {"pooling_mode": "max"}, "pooled by 'max'"),
        ((POOLING,), {"pooling_mode": 3}, "1_Pooling/config.json: pooling_mode is 3"),
        ((POOLING,), {"pooling_mode_lasttoken": 1}, "pooling_mode_lasttoken is 1"),
        ((POOLING,), [], "1_Pooling/config.json: found"),
        ((POOLING, {"type": "sentence_transformers.models.CNN"}), LAST, "type is .*CNN"),
        ((3,), LAST, "modules.json: found 3; expected a module"),
        ((POOLING, POOLING), LAST, "expected at most 1 Pooling modules"),
        (({**POOLING, "path": "\ud800"},), LAST, "surrogates not allowed"),
        (({**POOLING, "path": "a\nb"},), LAST, r"path is 'a\\nb'; expected the name of"),
        (({"path": "x"},), LAST, "type is missing"),
        (({**POOLING, "path": "../1_Pooling"},), LAST, r"path is '\.\./1_Pooling'"),
        (({**POOLING, "path": ".."},), LAST, r"path is '\.\.'"),
        (({**POOLING, "path": "/etc"},), LAST, "path is '/etc'"),
        (({**POOLING, "path": "2_Pooling"},), LAST, "2_Pooling/config.json: no such file"),
    ],
)
def test_what_the_engine_has_not_is_refused_by_name(
    modules: tuple[Any, ...], pooling: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFormatError, match=said):
        read(tmp_path, *modules, pooling=pooling)


def test_a_file_that_is_no_list(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(ModelFormatError, match=r"modules\.json: found {}; expected a JSON list"):
        read_embedding_defaults(tmp_path, CONFIG)


def test_the_same_folder_is_not_read_a_million_times(tmp_path: Path) -> None:
    """A file of 64 MiB names a million layers, each of which would be copied."""
    write_dense(tmp_path / "2_Dense", WIDTH, WIDTH, bias=False)
    assert read(tmp_path, TRANSFORMER, POOLING, *[DENSE] * 8).head is not None
    with pytest.raises(ModelFormatError, match=r"type is .*Dense'; expected at most 8 Dense mod"):
        read(tmp_path, TRANSFORMER, POOLING, *[DENSE] * 9)
