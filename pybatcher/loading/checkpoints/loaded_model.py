"""`LoadedModel`: the contents of a checkpoint, in the form that the engine takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as TokenizerBackend

from ...params.embedding_defaults import EmbeddingDefaults
from .model_config import ModelConfig
from .tensors import Tensor

__all__ = ["LoadedModel", "TokenizerParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """The parts of `pybatcher.text.Tokenizer` and `ChatTemplate`.

    backend: without padding and truncation, not shared with other code. None: the
        checkpoint has no tokenizer, and only prompts of token ids can be served.
    chat_template: Jinja source; None: the checkpoint has none.
    tool_template: that of chats with tools; None: `chat_template` is for these too.
    response_template: of the tokenizer, how responses are to be read; None: it says nothing.
    special_tokens: texts of the special tokens, by name: "bos_token", "eos_token", ...
    bos_token_id: None where the model has none.
    eos_token_ids: all tokens that end a text.
    sampling: fields of SamplingParams, as the model's files recommend them.
    """

    backend: TokenizerBackend | None
    chat_template: str | None
    special_tokens: Mapping[str, str]
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    response_template: Mapping[str, Any] | None = None
    tool_template: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A checkpoint: configuration, weights, tokenizer.

    tensors: by canonical name; the head is absent where it is tied to the token embedding.
        token_embedding (vocab, hidden) · position_embedding (positions, hidden)
        layers.{i}.attn_norm, mlp_norm .weight .bias (hidden,)
        layers.{i}.q, k, v (heads * head_dim, hidden), o (hidden, heads * head_dim) .weight .bias
        layers.{i}.q_norm, k_norm .weight (head_dim,)
        layers.{i}.gate, up (intermediate, hidden), down (hidden, intermediate) .weight .bias
        layers.{i}.sinks.weight (heads,)
        layers.{i}.router (experts, hidden), layers.{i}.experts.{e}.gate, up, down .weight .bias:
        instead of gate, up and down in a layer with experts, or beside them; then with
        layers.{i}.router_norm, experts_norm, mlp_out_norm, experts_out_norm .weight (hidden,) and
        layers.{i}.expert_scales.weight (experts,)
        final_norm .weight .bias (hidden,) · head.weight (vocab, hidden)
    dtype: of the token embedding, "f32" | "f16" | "bf16"; other tensors may differ. For a
        GGUF file the dtype of most of its matrices, which may also be a format in ENGINE_BLOCKS;
        for a checkpoint of quantised weights the one that suits most of those.
    name: shown to users: the name of the directory, of the file, or of the module's class.
    path: None for a module in memory.
    fingerprint: of the files that were read; "" for a module in memory.
    embedding: how the model embeds texts, where the caller does not say.
    generates: it has a head, or one tied to the token embedding, and is no encoder; else it
        only embeds.
    """

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    tokenizer: TokenizerParts
    dtype: str
    name: str
    path: Path | None
    fingerprint: str = ""
    embedding: EmbeddingDefaults = field(default_factory=EmbeddingDefaults)
    generates: bool = True
