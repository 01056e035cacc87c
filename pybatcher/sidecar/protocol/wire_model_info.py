"""The codec of a `ModelInfo`: {name, fingerprint, max_sequence_length, vocab_size, kv_block_size,
special_tokens, chat_template, sampling, takes_tools, takes_thinking, takes_images, max_images,
max_image_pixels, max_image_bytes}.
"""

from __future__ import annotations

from typing import Any

from ...calls.model_info import ModelInfo
from .wire_fields import ANSWERED

__all__ = ["model_info_from_wire", "model_info_to_wire"]

_LIMITS = ("max_images", "max_image_pixels", "max_image_bytes")


def model_info_to_wire(info: ModelInfo) -> dict[str, Any]:
    """Return the map of the description of a model."""
    return {
        "name": info.name,
        "fingerprint": info.fingerprint,
        "max_sequence_length": info.max_sequence_length,
        "vocab_size": info.vocab_size,
        "kv_block_size": info.kv_block_size,
        "special_tokens": dict(info.special_tokens),
        "chat_template": info.chat_template,
        "sampling": dict(info.sampling),
        "takes_tools": info.takes_tools,
        "takes_thinking": info.takes_thinking,
        "takes_images": info.takes_images,
        **{name: getattr(info, name) for name in _LIMITS},
    }


def model_info_from_wire(wire: object) -> ModelInfo:
    """Return the received description. Raises ProtocolError."""
    said = ANSWERED.map(wire, "the model")
    special = ANSWERED.map(said.get("special_tokens", {}), "special_tokens")
    sampling = ANSWERED.map(said.get("sampling", {}), "sampling")
    template = said.get("chat_template")
    return ModelInfo(
        name=ANSWERED.text(said.get("name"), "the model's name"),
        fingerprint=ANSWERED.text(said.get("fingerprint"), "the model's fingerprint"),
        max_sequence_length=ANSWERED.whole(
            said.get("max_sequence_length"), "the model's max_sequence_length"
        ),
        vocab_size=ANSWERED.whole(said.get("vocab_size"), "the model's vocab_size"),
        kv_block_size=ANSWERED.whole(said.get("kv_block_size"), "the model's kv_block_size"),
        special_tokens={
            name: ANSWERED.text(text, f"special_tokens.{name}") for name, text in special.items()
        },
        chat_template=None if template is None else ANSWERED.text(template, "chat_template"),
        sampling={
            name: ANSWERED.number(value, f"sampling.{name}") for name, value in sampling.items()
        },
        takes_tools=ANSWERED.flag(said.get("takes_tools", False), "takes_tools"),
        takes_thinking=ANSWERED.flag(said.get("takes_thinking", False), "takes_thinking"),
        takes_images=ANSWERED.flag(said.get("takes_images", False), "takes_images"),
        **{name: ANSWERED.whole(said.get(name, 0), name) for name in _LIMITS},
    )
