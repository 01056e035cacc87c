"""Token ids of prompts with images, by the whole processors of transformers."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from image_files import picture
from processors import prepared, processor_of
from tokenizers import Tokenizer, models, pre_tokenizers
from torchvision_stand_in import module_with_torchvision

pytest.importorskip("torch")
pytest.importorskip("transformers")
from transformers import PreTrainedTokenizerFast
from transformers.processing_utils import ProcessorMixin


@dataclass(frozen=True)
class Case:
    """The classes of a family in transformers, and the settings of a small checkpoint.

    image_class, class_name: with their modules, below transformers.models.
    tokens: texts of special tokens by the name that the tokenizer has for them.
    extra: arguments of the processor.
    """

    model_type: str
    image_class: str
    class_name: str
    placeholder: str
    vision: dict[str, Any]
    settings: dict[str, Any]
    config: dict[str, Any]
    tokens: dict[str, str]
    extra: dict[str, Any] = field(default_factory=dict)


OTHER = SimpleNamespace(merge_size=2, model_input_names=[])
CASES = [
    Case(
        "qwen3_5",
        "qwen2_vl.image_processing_pil_qwen2_vl.Qwen2VLImageProcessorPil",
        "qwen3_vl.processing_qwen3_vl.Qwen3VLProcessor",
        "<|vision_start|><|image_pad|><|vision_end|>",
        {"patch_size": 16},
        {"size": {"shortest_edge": 4096, "longest_edge": 65536}, "patch_size": 16},
        {},
        {"image_token": "<|image_pad|>", "start": "<|vision_start|>", "end": "<|vision_end|>"},
        {"video_processor": OTHER},
    ),
    Case(
        "gemma4",
        "gemma4.image_processing_pil_gemma4.Gemma4ImageProcessorPil",
        "gemma4.processing_gemma4.Gemma4Processor",
        "<|image|>",
        {"patch_size": 4},
        {"patch_size": 4, "max_soft_tokens": 70},
        {},
        {
            **{"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>"},
            **{"audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"},
        },
        {"video_processor": OTHER, "feature_extractor": OTHER},
    ),
    Case(
        "idefics3",
        "idefics3.image_processing_pil_idefics3.Idefics3ImageProcessorPil",
        "idefics3.processing_idefics3.Idefics3Processor",
        "<image>",
        {"image_size": 48, "patch_size": 8},
        {"size": {"longest_edge": 140}, "max_image_size": {"longest_edge": 48}},
        {"scale_factor": 3},
        {"image_token": "<image>", "global_image_token": "<global-img>", "tile": "<row_1_col_1>"},
        {"image_seq_len": 4},
    ),
    Case(
        "gemma3",
        "gemma3.image_processing_pil_gemma3.Gemma3ImageProcessorPil",
        "gemma3.processing_gemma3.Gemma3Processor",
        "<start_of_image>",
        {"image_size": 56, "patch_size": 14},
        {"size": {"height": 56, "width": 56}},
        {"mm_tokens_per_image": 4},
        {
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        },
        {"image_seq_length": 4},
    ),
    Case(
        "mistral3",
        "pixtral.image_processing_pil_pixtral.PixtralImageProcessorPil",
        "pixtral.processing_pixtral.PixtralProcessor",
        "[IMG]",
        {"image_size": 112, "patch_size": 14},
        {"size": {"longest_edge": 112}},
        {},
        {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "end": "[IMG_END]"},
        {"patch_size": 14, "spatial_merge_size": 2},
    ),
    Case(
        "lfm2_vl",
        "lfm2_vl.image_processing_lfm2_vl.Lfm2VlImageProcessor",
        "lfm2_vl.processing_lfm2_vl.Lfm2VlProcessor",
        "<image>",
        {"patch_size": 4},
        {
            "encoder_patch_size": 4,
            "tile_size": 32,
            "min_image_tokens": 4,
            "max_image_tokens": 16,
        },
        {},
        {"image_token": "<image>", "image_start_token": "<|image_start|>"},
    ),
]


def tokenizer_of(tokens: dict[str, str]) -> Any:
    """Return a tokenizer of bytes and these special tokens."""
    vocabulary = {text: i for i, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(tokens.values()))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        extra_special_tokens=tokens,
        pad_token=next(iter(tokens.values())),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model_type)
def test_token_ids_are_those_of_transformers(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # stand-ins take the place of the processors of videos and sounds
    monkeypatch.setattr(ProcessorMixin, "check_argument_for_proper_class", lambda *_: None)
    made = []
    for name in (case.image_class, case.class_name):
        module, _, class_name = name.rpartition(".")
        loaded = module_with_torchvision(f"transformers.models.{module}", monkeypatch)
        made.append(getattr(loaded, class_name))
    tokenizer = tokenizer_of(case.tokens)
    oracle = made[1](image_processor=made[0](**case.settings), tokenizer=tokenizer, **case.extra)
    processor = processor_of(case.model_type, case.vision, case.settings, config=case.config)
    images = [picture(64, 96), picture(33, 100), picture(100, 100)]
    parts = ["first ", " then ", "", " and a word"]
    prompt = case.placeholder.join(parts)
    expected = oracle(text=[prompt], images=[images])["input_ids"][0]
    text, *rest = prompt.split(processor.placeholder)
    for image, part in zip(images, rest, strict=True):
        text += prepared(processor, image).text + part
    assert list(tokenizer(text)["input_ids"]) == list(expected)
    n_image_tokens = sum(prepared(processor, image).n_tokens for image in images)
    image_id = tokenizer.convert_tokens_to_ids(processor.image_token)
    assert list(expected).count(image_id) == n_image_tokens


def test_every_family_has_a_case() -> None:
    readers = importlib.import_module("pybatcher.images.processors")._READERS
    names = {case.model_type for case in CASES}
    assert {readers[name] for name in names} == set(readers.values())
