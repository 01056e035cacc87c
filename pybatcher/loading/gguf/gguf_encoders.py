"""Encoders in GGUF files: what their keys say, and the rules of their tensors.

Keys, defaults and names are those of llama.cpp's loader. A file does not say by which GELU a model
was trained: BERT and ModernBERT have the exact one here, and the tanh form in llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..checkpoints.fields import Fields
from ..checkpoints.limits import MAX_POSITIONS
from ..checkpoints.llama_config import LlamaSizes
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.rope import read_rope
from ..checkpoints.tensors import Tensor, TensorRule
from ..families import bert, modernbert
from .gguf_keys import ArchitectureKeys

__all__ = [
    "bert_rules",
    "gemma_embedding",
    "modern_bert_rules",
    "read_bert",
    "read_modern_bert",
]

_TYPES = "token_types.weight"
_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "embeddings.norm": "token_embd_norm",
    "final_norm": "output_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "attn_norm": "attn_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.Wo": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.Wi": "ffn_up",
    "mlp.Wo": "ffn_down",
}
"""GGUF's names of transformers' tensors, of a model or of a layer."""


def read_bert(keys: ArchitectureKeys, sizes: LlamaSizes, vocab_size: int) -> ModelConfig:
    """Return the configuration of a `bert` file: BERT, RoBERTa or XLM-RoBERTa."""
    keys.refuse_unless("attention.causal", False)
    return ModelConfig(
        **sizes._asdict(),
        architecture="bert",
        vocab_size=vocab_size,
        norm="layer",
        norm_eps=keys.number("attention.layer_norm_epsilon", 0.0, 1.0),
        activation="gelu",
        gated_mlp=False,
        position="learned",
        ropes=(),
        layer_ropes=(-1,) * sizes.n_layers,
        attention_scale=sizes.head_dim**-0.5,
        sliding_windows=(0,) * sizes.n_layers,
        causal=False,
        stream_norms="all",
    )


def bert_rules(config: ModelConfig, tensors: Mapping[str, Tensor]) -> Iterator[TensorRule]:
    """Yield the rules of a `bert` file."""
    types = tensors.get(_TYPES)
    n_types = 1 if types is None else types.shape[0]
    yield from _renamed(bert.rules(config, "", 0, n_types))


def read_modern_bert(
    keys: ArchitectureKeys, sizes: LlamaSizes, vocab_size: int, sliding: Sequence[bool]
) -> ModelConfig:
    """Return the configuration of a `modern-bert` file. sliding: which layers see a window."""
    keys.refuse_unless("attention.causal", False)
    window = keys.integer("attention.sliding_window", 0, MAX_POSITIONS, 0)
    sliding = [slides and window > 0 for slides in sliding]
    thetas = (
        keys.number("rope.freq_base", 1e-3, 1e12, 1e4),
        keys.number("rope.freq_base_swa", 1e-3, 1e12, 1e4),
    )
    source, n_positions = keys.fields.source, sizes.max_position_embeddings
    ropes = [
        read_rope(Fields({"rope_theta": theta}, source), sizes.head_dim, n_positions)
        for theta in thetas
    ]
    return ModelConfig(
        **sizes._asdict(),
        architecture="modernbert",
        vocab_size=vocab_size,
        norm="layer",
        norm_eps=keys.number("attention.layer_norm_epsilon", 0.0, 1.0),
        activation="gelu",
        gated_mlp=True,
        position="rope",
        ropes=tuple(ropes),
        layer_ropes=tuple(map(int, sliding)),
        attention_scale=sizes.head_dim**-0.5,
        sliding_windows=tuple(window // 2 + 1 if slides else 0 for slides in sliding),
        causal=False,
        norm_bias=False,
        stream_norms="first",
    )


def modern_bert_rules(config: ModelConfig, _: Mapping[str, Tensor]) -> Iterator[TensorRule]:
    """Yield the rules of a `modern-bert` file, which has no biases."""
    for rule in modernbert.rules(config, attention_bias=False, mlp_bias=False):
        yield from _renamed([replace(rule, source=rule.source.removeprefix("model."))])


def gemma_embedding(config: ModelConfig) -> ModelConfig:
    """Return the configuration of a Gemma 3 as an encoder, with half a window on each side."""
    windows = tuple(window // 2 + 1 if window else 0 for window in config.sliding_windows)
    return replace(config, causal=False, sliding_windows=windows)


def _renamed(rules: Iterator[TensorRule] | Sequence[TensorRule]) -> Iterator[TensorRule]:
    for rule in rules:
        plus = rule.plus_row
        yield replace(
            rule,
            source=_gguf_name(rule.source),
            otherwise=None,
            plus_row=None if plus is None else replace(plus, source=_gguf_name(plus.source)),
        )


def _gguf_name(source: str) -> str:
    """Return GGUF's name of a tensor that transformers calls `source`, without a prefix."""
    stem, _, kind = source.rpartition(".")
    found = re.fullmatch(r"(?:encoder\.layer|layers)\.(\d+)\.(.*)", stem)
    if found is None:
        return f"{_NAMES[stem]}.{kind}"
    return f"blk.{found[1]}.{_NAMES[found[2]]}.{kind}"
