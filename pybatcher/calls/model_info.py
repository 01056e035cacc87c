"""`ModelInfo`: a description of the model that a batcher serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ModelInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model that a batcher, or a sidecar, serves now.

    name: the display name. fingerprint: identifies the model's files, "" if unknown. Two models
        with the same name and different fingerprints are different models.
    max_sequence_length: most tokens of a prompt and its output together.
    vocab_size: token ids go from 0 to `vocab_size` - 1. kv_block_size: positions of a KV block.
    special_tokens: texts of tokens by their role, as in tokenizer_config.json: "bos_token",
        "eos_token", ...
    chat_template: the Jinja source; None if the model has no template.
    takes_tools: True if the chat template shows tools. Else a chat with tools has a description of
        them in its system message.
    takes_thinking: True if `enable_thinking` or `reasoning_effort` change the prompt of a chat.
    takes_images: True if chats may have images: the model has a vision tower, which was loaded, and
        its chat template shows images.
    max_images, max_image_pixels, max_image_bytes: the most images of a chat, and the most pixels
        and bytes of each (`EngineConfig`); 0 if the model takes no images.
    sampling: fields of SamplingParams that the model's files recommend (`of_model`).
    """

    name: str
    fingerprint: str
    max_sequence_length: int
    vocab_size: int
    kv_block_size: int
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    chat_template: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    takes_tools: bool = False
    takes_thinking: bool = False
    takes_images: bool = False
    max_images: int = 0
    max_image_pixels: int = 0
    max_image_bytes: int = 0
