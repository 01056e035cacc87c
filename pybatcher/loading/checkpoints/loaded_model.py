"""`LoadedModel`: the contents of a checkpoint, in the form that the engine takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as TokenizerBackend

from ...images import ImageProcessor
from ...params.embedding_defaults import EmbeddingDefaults
from .model_config import ModelConfig
from .model_files import ModelFiles
from .tensors import Tensor
from .vision_config import VisionConfig

__all__ = ["LoadedModel", "TokenizerParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """The parts of `pybatcher.text.Tokenizer` and `ChatTemplate`.

    backend: a private tokenizer without padding and truncation. None: the checkpoint has no
        tokenizer, and only prompts of token ids can be served.
    chat_template: Jinja source; None: the checkpoint has none.
    tool_template: the template for chats with tools; None: `chat_template` is for these too.
    response_template: the tokenizer's template for parsing responses; None: it has none.
    special_tokens: texts of the special tokens, by name: "bos_token", "eos_token", ...
    bos_token_id: the id of the BOS token; None: the model has none.
    eos_token_ids: all tokens that end a text.
    sampling: the values of SamplingParams that the model's files recommend, by field.
    """

    backend: TokenizerBackend | None
    chat_template: str | None
    special_tokens: Mapping[str, str]
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    response_template: Mapping[str, Any] | None = None
    tool_template: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)

    def with_template(self, source: str | None) -> TokenizerParts:
        """Return the parts with another chat template, also for tools; None: these parts."""
        if source is None:
            return self
        return replace(self, chat_template=source, tool_template=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A checkpoint: configuration, weights, tokenizer.

    tensors: tensors by canonical name; a head that is tied to the token embedding is absent.
        token_embedding (vocab, hidden) · position_embedding (positions, hidden)
        layers.{i}.attn_norm, mlp_norm .weight .bias (hidden,)
        layers.{i}.q, k, v (heads * head_dim, hidden), o (hidden, heads * head_dim) .weight .bias
        layers.{i}.q_norm, k_norm .weight (head_dim,)
        layers.{i}.gate, up (intermediate, hidden), down (hidden, intermediate) .weight .bias
        layers.{i}.sinks.weight (heads,)
        layers.{i}.router (experts, hidden), layers.{i}.experts.{e}.gate, up, down .weight .bias:
        a layer with experts has them instead of gate, up and down, or beside these; in the second
        case it also has router_norm, experts_norm, mlp_out_norm, experts_out_norm .weight
        (hidden,) and expert_scales.weight (experts,)
        final_norm .weight .bias (hidden,) · head.weight (vocab, hidden)
        Those of a vision tower begin with "tower.": patch .weight .bias (hidden, patch_size) ·
        positions.weight (positions, hidden) · layers.{i}.* · pre_norm, final_norm ·
        projector.norm_before, norm_after, linears.{j} .weight .bias · deepstack.{d}.*
    dtype: the dtype of the token embedding, "f32" | "f16" | "bf16"; other tensors may differ. For
        a GGUF file it is the dtype of most matrices, which may also be a format in ENGINE_BLOCKS;
        for a checkpoint of quantised weights it is the dtype nearest to most of these.
    name: the display name: that of the directory, of the file, or of the module's class.
    path: the directory or file; None for a module in memory.
    fingerprint: the digest of all files that were read; "" for a module in memory.
    weights_fingerprint: the digest of what the values of the weights depend on.
    files: the files that were read; None for a module in memory.
    embedding: the defaults for embedding texts.
    generates: False for an encoder and for a model without a head, which only embed.
    vision: the vision tower; None: the model takes no images.
    image_processor: prepares images for the tower.
    """

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    tokenizer: TokenizerParts
    dtype: str
    name: str
    path: Path | None
    fingerprint: str = ""
    weights_fingerprint: str = ""
    files: ModelFiles | None = None
    embedding: EmbeddingDefaults = field(default_factory=EmbeddingDefaults)
    generates: bool = True
    vision: VisionConfig | None = None
    image_processor: ImageProcessor | None = None

    def without_vision(self) -> LoadedModel:
        """Return the text model alone, which takes no images."""
        if self.vision is None:
            return self
        tensors = {
            name: tensor for name, tensor in self.tensors.items() if not name.startswith("tower.")
        }
        config = self.config.without_images()
        return replace(self, config=config, tensors=tensors, vision=None, image_processor=None)
