from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pybatcher.testing.checkpoints import (
    ARCHITECTURES,
    make_checkpoint,
    make_module,
    make_tokenizer,
)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_loads_what_was_saved(architecture: str, tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path / "deep" / "model", architecture, seed=5)
    assert path == tmp_path / "deep" / "model"
    stored = AutoModelForCausalLM.from_pretrained(path).state_dict()
    for name, tensor in make_module(architecture, seed=5).state_dict().items():
        assert torch.equal(stored[name], tensor), name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_logits_are_worth_comparing(architecture: str) -> None:
    """They are far from zero and from one another, and no token always wins."""
    module = make_module(architecture)
    with torch.no_grad():
        ids = torch.arange(64)[None] * 5 % 384
        logits = module(ids).logits[0]
    assert logits.isfinite().all()
    assert 0.5 < logits.std() < 50
    assert len(set(logits.argmax(-1).tolist())) > 8


def test_the_seed_says_what_the_weights_are() -> None:
    def weight(seed: int) -> torch.Tensor:
        return make_module("llama", seed=seed).lm_head.weight

    before = torch.random.get_rng_state()
    assert torch.equal(weight(1), weight(1))
    assert not torch.equal(weight(1), weight(2))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_biases_and_norms_are_random() -> None:
    for name, parameter in make_module("gpt2").named_parameters():
        assert parameter.std() > 0.01, name
    names = dict(make_module("llama", attention_bias=True, mlp_bias=True).named_parameters())
    assert names["model.layers.0.mlp.up_proj.bias"].std() > 0.01


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_types(dtype: str, tmp_path: Path) -> None:
    module = make_module("llama", dtype=dtype)
    assert {p.dtype for p in module.parameters()} == {getattr(torch, dtype)}
    assert module.model.rotary_emb.inv_freq.dtype == torch.float32
    path = make_checkpoint(tmp_path, "llama", dtype=dtype)
    assert AutoModelForCausalLM.from_pretrained(path, dtype="auto").dtype == getattr(torch, dtype)


def test_overrides_are_fields_of_the_configuration() -> None:
    config = make_module("qwen3", num_attention_heads=5, num_key_value_heads=1, head_dim=6).config
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (5, 1, 6)


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "gpt2"])
def test_there_may_be_fewer_layers(architecture: str) -> None:
    assert make_module(architecture, num_hidden_layers=2).config.num_hidden_layers == 2


def test_many_files(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path, "gpt2", max_shard_size="100KB")
    assert (path / "model.safetensors.index.json").exists()


def test_a_tokenizer_comes_with_it(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(make_checkpoint(tmp_path, "llama"))
    text = "The fox 日本 🦊"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    messages = [{"role": "user", "content": "hi"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|begin|><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_or_it_does_not(tmp_path: Path) -> None:
    bare = make_checkpoint(tmp_path / "bare", "llama", tokenizer=False)
    assert not list(bare.glob("tokenizer*"))
    mute = make_checkpoint(tmp_path / "mute", "llama", chat_template=None)
    assert (mute / "tokenizer.json").exists()
    assert not (mute / "chat_template.jinja").exists()


@pytest.mark.parametrize("vocab_size", [260, 300, 384])
def test_every_byte_and_no_more_tokens_than_asked_for(vocab_size: int) -> None:
    tokenizer = make_tokenizer(vocab_size)
    assert tokenizer.get_vocab_size() == vocab_size
    everything = bytes(range(1, 128)).decode() + "\u00ff\u0800\uffff\U0010ffff"
    assert tokenizer.decode(tokenizer.encode(everything).ids) == everything
    assert [tokenizer.token_to_id(t) for t in ("<|begin|>", "<|end|>")] == [0, 1]
