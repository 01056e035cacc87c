"""One module for each family of architectures: reads config.json, knows the tensor names."""

from __future__ import annotations

from ..blueprint import Blueprint
from ..fields import Fields
from . import gpt2, llama, smollm3

__all__ = ["CLASSES", "read_blueprint"]

_READERS = {
    "llama": llama.read,
    "mistral": llama.read,
    "qwen2": llama.read,
    "qwen3": llama.read,
    "gpt2": gpt2.read,
    "smollm3": smollm3.read,
}

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "smollm3": "SmolLM3ForCausalLM",
}
"""The transformers class of each architecture's language model."""


def read_blueprint(fields: Fields) -> Blueprint:
    """Return the blueprint of the model that config.json describes.

    Raises ModelFormatError for an unsupported architecture or option, or an impossible size.
    """
    architecture = fields.text("model_type")
    if architecture not in _READERS:
        raise fields.error("model_type", "one of " + ", ".join(map(repr, _READERS)))
    classes = fields.get("architectures")
    expected = CLASSES[architecture]
    if classes is not None and not (isinstance(classes, list) and expected in classes):
        raise fields.error("architectures", f"[{expected!r}], as model_type is {architecture!r}")
    fields.refuse_unless("quantization_config")
    return _READERS[architecture](fields)
