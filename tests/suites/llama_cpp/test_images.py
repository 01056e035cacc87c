"""Chats with an image, of a GGUF model with an mmproj file, beside llama.cpp's mtmd.

The image has sides that are not resized. llama.cpp's GELU is a table; its rows of an image differ
by that.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf_vision import write_mmproj, write_text_gguf
from llama_cpp_files import LlamaCpp
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

import pybatcher
from tests.support.vision_models import randomise

CLOSE = 1e-3  # of log-probabilities
N_TOKENS = 12
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
TEMPLATE = (
    "{% for part in messages[0].content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}"
)
TEXT: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [6, 5, 5],
        "mrope_interleaved": True,
    },
}
VISION: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "patch_size": 16,
    "out_hidden_size": 64,
    "num_position_embeddings": 36,
}


def qwen3_vl() -> Any:
    config = Qwen3VLConfig(
        text_config=TEXT, vision_config={**VISION, "deepstack_visual_indexes": [0, 1]}
    )
    return Qwen3VLForConditionalGeneration(config)


def qwen3_5() -> Any:
    rope = {**TEXT["rope_parameters"], "mrope_section": [3, 3, 2], "partial_rotary_factor": 0.5}
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    sizes = {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
    text = {**TEXT, "rope_parameters": rope, **heads, **sizes}
    return Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=text, vision_config=VISION))


def write_tokenizer(directory: Path) -> None:
    """Write a byte-level tokenizer with the special tokens of a chat with images."""
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab={**letters, "th": 256}, merges=[("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


async def continued(model: Path, mmproj: Path, image: Any) -> tuple[list[int], list[float]]:
    content = [
        {"type": "text", "text": "Here is "},
        {"type": "image", "image": image},
        {"type": "text", "text": ", and what is it?"},
    ]
    async with pybatcher.Batcher(model, mmproj=mmproj, dtype="f32", n_ctx=512) as batcher:
        found = await batcher.chat(
            [{"role": "user", "content": content}],
            max_tokens=N_TOKENS,
            temperature=0,
            logprobs=0,
            ignore_eos=True,
        )
    assert found.logprobs is not None
    return list(found.token_ids), [token.logprob for token in found.logprobs]


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("make", [qwen3_vl, qwen3_5])
def test_chats_with_an_image(make: Any, kind: Kind, tmp_path: Path) -> None:
    module = make()
    randomise(module)
    hf = tmp_path / "hf"
    module.save_pretrained(hf)
    write_tokenizer(hf)
    model = write_text_gguf(hf, tmp_path / "model.gguf")
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (256, 288, 3), np.uint8) for _ in range(2)]
    llama_cpp = LlamaCpp(tmp_path)
    towers = [write_mmproj(hf, tmp_path / f"tower-{i}.gguf", kind) for i in range(2)]
    prompt = "Here is <image>, and what is it?"
    targets = [
        llama_cpp.seen(model, tower, image, prompt, N_TOKENS)
        for tower, image in zip(towers, images, strict=True)
    ]
    llama_cpp.run()
    found = [
        asyncio.run(continued(model, tower, image))
        for tower, image in zip(towers, images, strict=True)
    ]
    for target, (tokens, logprobs) in zip(targets, found, strict=True):
        expected_tokens, expected = np.load(target)
        assert tokens == expected_tokens.tolist()
        close = CLOSE if kind == Kind.F32 else 0.05
        assert np.abs(np.array(logprobs) - expected).max() < close
    assert found[0] != found[1]
