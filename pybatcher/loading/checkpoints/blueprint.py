"""`Blueprint`: a model's configuration and its tensor rules, read from config.json."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from .fields import shown
from .limits import MAX_POSITIONS
from .model_config import ModelConfig
from .tensors import Tensor, TensorRule, gather
from .vision_config import VisionConfig

__all__ = ["EMBEDDING", "HEAD", "PER_LAYER_EMBEDDINGS", "TEXT_PREFIXES", "Blueprint"]

EMBEDDING = "token_embedding"
HEAD = "head.weight"
PER_LAYER_EMBEDDINGS = "per_layer_embeddings.embedding"
TEXT_PREFIXES = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("lm_head.", "lm_head."),
)
"""The prefixes of text models inside vision models, as releases of transformers save them."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """Configuration and tensor rules of one model, made by its family's config reader.

    rules: one rule for each tensor of the engine.
    tied: True if the head is the token embedding, so that the checkpoint may lack either.
    prefix: the prefix of the checkpoint's tensor names ("transformer.") that some checkpoints of
        the family omit; "" if no checkpoint omits one.
    text_prefixes: pairs of prefixes, in the checkpoint and in the rules, of the text part of a
        multimodal model; () for a model that has only text.
    vision: the tower that computes embeddings of images; None: images are not supported.
    vision_rules: one rule for each tensor of the tower.
    vision_prefixes: pairs of prefixes, in the checkpoint and in `vision_rules`, of the tensors of
        the tower.
    generates: False for an encoder and for a model without a head.
    rounds_embedding_scale: True if the scales of the token embedding and of the per-layer
        embeddings are rounded to the dtype of these.
    padding_token: as in `EmbeddingDefaults`.
    unused: names of tensors that a GGUF file may have and that no layer needs.
    """

    config: ModelConfig
    rules: tuple[TensorRule, ...]
    tied: bool
    prefix: str = ""
    text_prefixes: tuple[tuple[str, str], ...] = ()
    vision: VisionConfig | None = None
    vision_rules: tuple[TensorRule, ...] = ()
    vision_prefixes: tuple[tuple[str, str], ...] = ()
    generates: bool = True
    rounds_embedding_scale: bool = False
    padding_token: int | None = None
    unused: frozenset[str] = frozenset()

    def without_head(self) -> Blueprint:
        """Return the blueprint of the same model saved without a head; a tied head is kept."""
        rules = tuple(rule for rule in self.rules if rule.name != HEAD)
        generates = self.generates and self.tied
        return replace(self, rules=self.rules if self.tied else rules, generates=generates)

    def fitted_to(self, available: Mapping[str, Tensor]) -> Blueprint:
        """Return the blueprint without the vision tower if no tensor of a tower is `available`."""
        prefixes = tuple(prefix for prefix, _ in self.vision_prefixes)
        has_tower = any(name.startswith(prefixes) for name in available)
        return self if self.vision is None or has_tower else self.without_vision()

    def without_vision(self) -> Blueprint:
        """Return the blueprint of the text model alone, whose rows have one position each."""
        return replace(self, config=self.config.without_images(), vision=None, vision_rules=())

    def bidirectional(self) -> Blueprint:
        """Return the blueprint of the same model with attention in both directions; it only embeds.

        A sliding window has its size on each side of the query, as transformers' masks have it.
        """
        windows = (
            window and min(window + 1, MAX_POSITIONS) for window in self.config.sliding_windows
        )
        config = replace(self.config, causal=False, sliding_windows=tuple(windows))
        return replace(self, config=config, generates=False).without_head()

    def config_of(self, tensors: Mapping[str, Tensor]) -> ModelConfig:
        """Return the configuration of the model with the tensors that `fill` returned."""
        if not self.rounds_embedding_scale:
            return self.config
        scale = _rounded(self.config.embedding_scale, tensors[EMBEDDING].dtype)
        config = replace(self.config, embedding_scale=scale)
        if config.per_layer_embedding_size == 0:
            return config
        scale = _rounded(config.per_layer_embedding_scale, tensors[PER_LAYER_EMBEDDINGS].dtype)
        return replace(config, per_layer_embedding_scale=scale)

    def fill(
        self, available: Mapping[str, Tensor], origin: str, *, reads: bool = True
    ) -> dict[str, Tensor]:
        """Return the model's tensors by canonical name, after checking types and shapes.

        reads: False: the values are not used; a head beside a tied embedding counts as equal.

        available: the checkpoint's tensors by its own names. origin: the checkpoint, for
        messages. As in transformers, a tied checkpoint whose embedding and head have different
        values is loaded as not tied, and a tied checkpoint with the head alone uses it as the
        embedding. Warns about parts of a multimodal model that are not loaded. Raises
        ModelFormatError if a tensor is missing or does not fit.
        """
        tower: dict[str, Tensor] = {}
        if self.text_prefixes:
            available, of_vision = self._parts(available, origin)
            tower = gather(self.vision_rules, of_vision, origin, reads=reads)
        rules = self.rules
        if self.prefix and not any(rule.source in available for rule in rules):
            bare = tuple(self._without_prefix(rule) for rule in rules)
            rules = bare if any(rule.source in available for rule in bare) else rules
        tensors = gather(self._present(rules, available), available, origin, reads=reads)
        head, embedding = tensors.get(HEAD), tensors.get(EMBEDDING)
        if embedding is None:
            tensors[EMBEDDING] = tensors.pop(HEAD)
        elif self.tied and head is not None and (not reads or _equal(head, embedding)):
            del tensors[HEAD]
        return {**tensors, **tower}

    def _parts(
        self, available: Mapping[str, Tensor], origin: str
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the tensors of the text model and of the tower, by the names of the rules.

        Warns about the other parts.
        """
        text: dict[str, Tensor] = {}
        vision: dict[str, Tensor] = {}
        others: Counter[str] = Counter()
        places = [(vision, *pair) for pair in self.vision_prefixes]
        places += [(text, *pair) for pair in self.text_prefixes]
        for name, tensor in available.items():
            for part, prefix, renamed in places:
                if name.startswith(prefix):
                    part[renamed + name.removeprefix(prefix)] = tensor
                    break
            else:
                others[name.removeprefix("model.").split(".")[0]] += 1
        if others:
            parts = ", ".join(f"{part} ({count} tensors)" for part, count in others.items())
            warnings.warn(
                f"{origin}: only {self._loaded_parts()} of the {self.config.architecture} is "
                f"loaded; left out: {shown(parts)}",
                stacklevel=4,
            )
        return text, vision

    def _loaded_parts(self) -> str:
        return "the text part" if self.vision is None else "the part for text and images"

    def _without_prefix(self, rule: TensorRule) -> TensorRule:
        return replace(
            rule,
            source=rule.source.removeprefix(self.prefix),
            otherwise=None if rule.otherwise is None else self._without_prefix(rule.otherwise),
            plus_row=None if rule.plus_row is None else self._without_prefix(rule.plus_row),
        )

    def _present(
        self, rules: tuple[TensorRule, ...], available: Mapping[str, Tensor]
    ) -> list[TensorRule]:
        """Return the rules without the absent tensor of a tied embedding and head.

        If both tensors are absent, the rule of the embedding stays, so that `gather` reports it.
        """
        if not self.tied:
            return list(rules)
        pair = [rule for rule in rules if rule.name in (EMBEDDING, HEAD)]
        absent = [rule for rule in pair if rule.source not in available]
        if len(absent) == len(pair):
            absent = [rule for rule in absent if rule.name == HEAD]
        return [rule for rule in rules if rule not in absent]


def _rounded(value: float, dtype: str) -> float:
    """Return the nearest number of `dtype`: "f32", "f16" or "bf16"; other names mean f32."""
    if dtype == "f16":
        return float(np.float16(value))
    if dtype == "bf16":
        bits = np.float32(value).view(np.uint32)
        even = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) & np.uint32(0xFFFF0000)
        return float(even.view(np.float32))
    return float(np.float32(value))


def _equal(head: Tensor, embedding: Tensor) -> bool:
    if head.stored is not None or embedding.stored is not None:
        return False
    a, b = head.array, embedding.array
    same_memory = a.ctypes.data == b.ctypes.data and a.strides == b.strides
    return same_memory or np.array_equal(a, b)
