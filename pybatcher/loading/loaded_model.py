"""`LoadedModel`: everything that a checkpoint says, in the engine's terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer as TokenizerBackend

from .model_config import ModelConfig
from .tensors import Tensor

__all__ = ["LoadedModel", "TokenizerParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """What `pybatcher.text.Tokenizer` and `ChatTemplate` are built from.

    backend: without padding and truncation, shared with nobody. None: the
        checkpoint has none, and only prompts of token ids can be served.
    chat_template: Jinja source; None: it has none.
    special_tokens: the texts that templates use, by name: "bos_token", "eos_token", ...
    bos_token_id: None where there is none.
    eos_token_ids: all tokens that end a text, of generation_config.json if it names any.
    """

    backend: TokenizerBackend | None
    chat_template: str | None
    special_tokens: Mapping[str, str]
    bos_token_id: int | None
    eos_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A checkpoint: configuration, weights, tokenizer.

    tensors: by canonical name; the head is absent where it is the token embedding.
        token_embedding (vocab, hidden) · position_embedding (positions, hidden)
        layers.{i}.attn_norm, mlp_norm .weight .bias (hidden,)
        layers.{i}.q, k, v (heads * head_dim, hidden), o (hidden, heads * head_dim) .weight .bias
        layers.{i}.q_norm, k_norm .weight (head_dim,)
        layers.{i}.gate, up (intermediate, hidden), down (hidden, intermediate) .weight .bias
        final_norm .weight .bias (hidden,) · head.weight (vocab, hidden)
    dtype: of the token embedding, "f32" | "f16" | "bf16"; the others may differ. Of a
        GGUF that of most of its matrices, which may be "int8" | "int4" too.
    name: for people: the directory's, the file's, or the module's class.
    path: None where the model was a module in memory.
    fingerprint: of the files that it was read from; empty where there are none.
    """

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    tokenizer: TokenizerParts
    dtype: str
    name: str
    path: Path | None
    fingerprint: str = ""
