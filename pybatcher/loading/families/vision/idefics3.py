"""Idefics 3 and SmolVLM: the text model of a Llama with a SigLIP as its vision tower."""

from __future__ import annotations

from dataclasses import replace

from ...checkpoints.blueprint import Blueprint
from ...checkpoints.fields import Fields
from ...parts import llama_like
from ...parts.family import Family
from ...parts.siglip import with_siglip

_TEXT_PREFIXES = (("model.text_model.", "model."), ("lm_head.", "lm_head."))


def _read(fields: Fields) -> Blueprint:
    """Return the blueprint of an idefics3 or smolvlm config.json. Raises ModelFormatError."""
    tied = fields.get("tie_word_embeddings")
    text = fields.child("text_config").with_defaults({"model_type": "llama"})
    text.refuse_unless("model_type", "llama", "VLlama3")
    config = llama_like.read_config(text, (0,) * llama_like.read_n_layers(text), norm_eps=1e-5)
    config = replace(config, architecture=fields.text("model_type"))
    bias = text.boolean("attention_bias", False)
    rules = llama_like.rules(
        config, qkv_bias=bias, o_bias=bias, mlp_bias=text.boolean("mlp_bias", False)
    )
    is_tied = tied if isinstance(tied, bool) else text.boolean("tie_word_embeddings", False)
    blueprint = Blueprint(config, tuple(rules), is_tied, text_prefixes=_TEXT_PREFIXES)
    return with_siglip(blueprint, fields) if "vision_config" in fields else blueprint


FAMILY = Family(
    hf={"idefics3": _read, "smolvlm": _read},
    classes={
        "idefics3": "Idefics3ForConditionalGeneration",
        "smolvlm": "SmolVLMForConditionalGeneration",
    },
)
