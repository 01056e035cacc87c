"""Small random checkpoints of models with images, with processors, and their answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from pybatcher.testing.checkpoints import make_tokenizer

from .vision_models import CASES, randomise

__all__ = ["Turn", "answer", "make_vision_checkpoint", "messages_of", "picture"]

_VOCABULARY = 384
_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.content is string -%}
{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- elif 'text' in part -%}
{{- part.text -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
_QWEN_PROCESSOR = {
    "size": {"shortest_edge": 256, "longest_edge": 4096},
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}

Part = str | Image.Image


@dataclass(frozen=True)
class Turn:
    """A message of a chat; the parts of its content are texts and images."""

    role: str
    parts: tuple[Part, ...]


def picture(height: int, width: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Return an image of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def messages_of(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return the messages of a chat as `Batcher.chat` takes them."""
    return [
        {
            "role": turn.role,
            "content": [
                {"type": "text", "text": part}
                if isinstance(part, str)
                else {"type": "image", "image": part}
                for part in turn.parts
            ],
        }
        for turn in turns
    ]


def make_vision_checkpoint(path: Path, family: str, *, seed: int = 1, **settings: Any) -> Any:
    """Save a model, its tokenizer and its processor; return the model.

    settings: of the processor, in the place of the usual ones.
    """
    tokenizer = _tokenizer()
    ids = {
        name: tokenizer.convert_tokens_to_ids(f"<|{token}|>")
        for name, token in (
            ("image_token_id", "image_pad"),
            ("video_token_id", "video_pad"),
            ("vision_start_token_id", "vision_start"),
            ("vision_end_token_id", "vision_end"),
        )
    }
    small = CASES[family].make()
    config = small.config
    config.text_config.vocab_size = len(tokenizer)
    for name, token_id in ids.items():
        setattr(config, name, token_id)
    module: Any = randomise(type(small)(config), seed)
    module.save_pretrained(path)
    tokenizer.save_pretrained(path)
    (path / "preprocessor_config.json").write_text(json.dumps(_QWEN_PROCESSOR | settings))
    return module


def answer(path: Path, module: Any, turns: Sequence[Turn], n_tokens: int) -> list[int]:
    """Return the greedy tokens of transformers after a chat."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
    processor = Qwen2VLImageProcessorPil.from_pretrained(path)
    images = [part for turn in turns for part in turn.parts if isinstance(part, Image.Image)]
    text = tokenizer.apply_chat_template(
        messages_of(turns), tokenize=False, add_generation_prompt=True
    )
    inputs: dict[str, Any] = {}
    if images:
        found = processor(images, return_tensors="pt")
        inputs = {name: found[name] for name in ("pixel_values", "image_grid_thw")}
        first, *rest = text.split("<|image_pad|>")
        text = first
        for grid, more in zip(found["image_grid_thw"], rest, strict=True):
            text += "<|image_pad|>" * (int(grid.prod()) // processor.merge_size**2) + more
    tokens = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        output = module.generate(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            mm_token_type_ids=(tokens == module.config.image_token_id).int(),
            max_new_tokens=n_tokens,
            min_new_tokens=n_tokens,
            do_sample=False,
            **inputs,
        )
    found_tokens: list[int] = output[0, tokens.shape[1] :].tolist()
    return found_tokens


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(_VOCABULARY),
        bos_token="<|begin|>",
        eos_token="<|end|>",
        clean_up_tokenization_spaces=False,
        additional_special_tokens=list(_TOKENS),
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer
