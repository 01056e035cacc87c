from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForSequenceClassification, PreTrainedTokenizerFast

from pybatcher.errors import ModelFormatError
from pybatcher.loading import from_torch, open_model
from pybatcher.testing.checkpoints import ARCHITECTURES, make_module, make_tokenizer


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_same_as_from_disk(architecture: str, originals: dict[str, Path]) -> None:
    stored = open_model(originals[architecture])
    tokenizer = PreTrainedTokenizerFast.from_pretrained(originals[architecture])
    live = from_torch(make_module(architecture, seed=1), tokenizer)
    assert live.config == stored.config
    assert live.dtype == stored.dtype
    assert live.path is None
    assert live.tensors.keys() == stored.tensors.keys()
    for name, tensor in stored.tensors.items():
        np.testing.assert_array_equal(live.tensors[name].array, tensor.array, err_msg=name)
    for part in ("chat_template", "special_tokens", "bos_token_id", "eos_token_ids"):
        assert getattr(live.tokenizer, part) == getattr(stored.tokenizer, part)
    assert live.tokenizer.backend is not None
    assert stored.tokenizer.backend is not None
    assert live.tokenizer.backend.to_str() == stored.tokenizer.backend.to_str()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_tensors_are_views_of_the_modules_memory(architecture: str, dtype: str) -> None:
    module = make_module(architecture, dtype=dtype)
    live = from_torch(module)
    assert live.dtype == {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[dtype]
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(1.5)
    bits = {"float32": 1.5, "float16": 1.5, "bfloat16": 0x3FC0}[dtype]
    for name, tensor in live.tensors.items():
        assert (tensor.array == bits).all(), name


def test_tensors_outlive_the_module() -> None:
    live = from_torch(make_module("llama", seed=1))
    expected = from_torch(make_module("llama", seed=1))
    for name, tensor in expected.tensors.items():
        np.testing.assert_array_equal(live.tensors[name].array, tensor.array)


def test_strided_parameters() -> None:
    module = make_module("llama", dtype="bfloat16")
    weight = module.model.layers[0].mlp.up_proj.weight
    expected = from_torch(module).tensors["layers.0.up.weight"].array.copy()
    weight.data = weight.data.T.contiguous().T
    strided = from_torch(module).tensors["layers.0.up.weight"].array
    assert not strided.flags.c_contiguous
    np.testing.assert_array_equal(strided, expected)


def test_heads_tied_by_hand() -> None:
    module = make_module("llama", tie_word_embeddings=False)
    assert "head.weight" in from_torch(module).tensors
    module.config.tie_word_embeddings = True
    assert "head.weight" in from_torch(module).tensors  # two different matrices still
    module.lm_head.weight = module.model.embed_tokens.weight
    assert "head.weight" not in from_torch(module).tensors
    module.config.tie_word_embeddings = False
    live = from_torch(module).tensors
    assert np.shares_memory(live["head.weight"].array, live["token_embedding"].array)


def test_tokenizers_of_every_kind() -> None:
    module = make_module("llama")
    backend = make_tokenizer()
    text = "the fox"
    assert from_torch(module, None).tokenizer.backend is None
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    wrapped.chat_template = {"default": "plain", "tool_use": "tools"}
    for tokenizer in (backend, wrapped):
        parts = from_torch(module, tokenizer).tokenizer
        assert parts.backend is not None
        assert parts.backend.encode(text).ids == backend.encode(text).ids
        assert parts.eos_token_ids == {1}
    assert (parts.chat_template, parts.tool_template) == ("plain", "tools")
    assert parts.special_tokens == {"eos_token": "<|end|>"}


def test_the_tokenizer_is_a_copy() -> None:
    backend = make_tokenizer()
    parts = from_torch(make_module("llama"), backend).tokenizer
    backend.enable_padding(length=99)
    assert parts.backend is not None
    assert len(parts.backend.encode("the fox").ids) < 10


def test_end_tokens_of_the_generation_config() -> None:
    module = make_module("llama")
    module.generation_config.eos_token_id = [1, 3]
    assert from_torch(module).tokenizer.eos_token_ids == {1, 3}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (torch.nn.Linear(2, 2), "Linear"),
        (None, "NoneType"),
        ("path/to/model", "str"),
    ],
)
def test_other_classes_are_refused_by_name(module: Any, name: str) -> None:
    with pytest.raises(
        ModelFormatError, match=f"module is a {name}; expected one of .*LlamaForCausalLM"
    ):
        from_torch(module)


def test_other_heads_are_refused_by_name() -> None:
    classifier = LlamaForSequenceClassification(make_module("llama").config)
    with pytest.raises(ModelFormatError, match="module is a LlamaForSequenceClassification"):
        from_torch(classifier)
    with pytest.raises(ModelFormatError, match="module is a GPT2Model"):
        from_torch(make_module("gpt2").transformer)


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_without_a_head(tied: bool) -> None:
    module = make_module("qwen3", seed=1, tie_word_embeddings=tied)
    whole, bare = from_torch(module), from_torch(module.model)
    assert bare.generates is tied
    assert bare.config == whole.config
    assert bare.tensors.keys() == whole.tensors.keys() - {"head.weight"}
    for name, tensor in bare.tensors.items():
        np.testing.assert_array_equal(tensor.array, whole.tensors[name].array)


def test_parameters_that_are_not_in_memory() -> None:
    said = r"parameter model\.embed_tokens\.weight is on device meta; expected cpu"
    with pytest.raises(ModelFormatError, match=said):
        from_torch(make_module("llama").to("meta"))


def test_parameters_of_another_type() -> None:
    with pytest.raises(ModelFormatError, match=r"parameter .* is torch\.float64.*torch\.bfloat16"):
        from_torch(make_module("llama").double())


def test_a_configuration_that_is_not_supported() -> None:
    module = make_module("llama", partial_rotary_factor=0.5)
    with pytest.raises(ModelFormatError, match=r"^LlamaForCausalLM\.config: .*partial_rotary"):
        from_torch(module)


def test_a_tokenizer_of_another_class() -> None:
    with pytest.raises(ModelFormatError, match="tokenizer is a str; expected"):
        from_torch(make_module("llama"), "gpt2")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_module_that_was_quantised() -> None:
    linear = {torch.nn.Linear}
    module = torch.ao.quantization.quantize_dynamic(make_module("llama"), linear, torch.qint8)
    said = r"^LlamaForCausalLM: model\..*_packed_params.* as in a module that was quantised; expect"
    with pytest.raises(ModelFormatError, match=said):
        from_torch(module)
