"""llama.cpp's names of tensors, by canonical names or by transformers' names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from ..checkpoints.blueprint import EMBEDDING, PER_LAYER_EMBEDDINGS
from ..checkpoints.tensors import TensorRule

__all__ = ["gguf_name", "renamed_by"]

_NAMES = {
    "final_norm": "output_norm",
    "head": "output",
    "attn_norm": "attn_norm",
    "attn_post_norm": "post_attention_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp_post_norm": "post_ffw_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "output_scale": "layer_output_scale",
    "input_gate": "inp_gate",
    "input_proj": "proj",
    "input_post_norm": "post_norm",
}
_NAMES_OF_MODEL = {
    EMBEDDING: "token_embd.weight",
    PER_LAYER_EMBEDDINGS: "per_layer_token_embd.weight",
    "per_layer_embeddings.proj.weight": "per_layer_model_proj.weight",
    "per_layer_embeddings.norm.weight": "per_layer_proj_norm.weight",
}


def gguf_name(name: str, own: Mapping[str, str] | None = None) -> str:
    """Return GGUF's name of a canonical tensor name.

    own: names that differ in an architecture, of parts of a layer or of tensors of the model:
        without "weight" or "bias", or complete.
    """
    names = {**_NAMES, **(own or {})}
    if name in _NAMES_OF_MODEL:
        return _NAMES_OF_MODEL[name]
    if not name.startswith("layers."):
        stem, _, kind = name.rpartition(".")
        return f"{names[stem]}.{kind}"
    _, layer, part = name.split(".", 2)
    stem, _, kind = part.rpartition(".")
    return f"blk.{layer}.{names[part] if part in names else f'{names[stem]}.{kind}'}"


def renamed_by(rules: Iterable[TensorRule], names: Mapping[str, str]) -> Iterator[TensorRule]:
    """Yield the rules with GGUF's names of transformers' tensors as sources.

    names: GGUF's names of a model's or a layer's tensors, by transformers' names without the
        model's prefix.
    """
    for rule in rules:
        plus = rule.plus_row
        if plus is not None:
            plus = replace(plus, source=_by_source(plus.source, names))
        source = _by_source(rule.source, names)
        yield replace(rule, source=source, otherwise=None, plus_row=plus)


def _by_source(source: str, names: Mapping[str, str]) -> str:
    stem, _, kind = source.rpartition(".")
    found = re.fullmatch(r"(?:encoder\.layer|layers)\.(\d+)\.(.*)", stem)
    if found is None:
        return f"{names[stem]}.{kind}"
    return f"blk.{found[1]}.{names[found[2]]}.{kind}"
