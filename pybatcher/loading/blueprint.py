"""`Blueprint`: a model as its config.json describes it, ready to be filled with tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .model_config import ModelConfig
from .tensors import Tensor, TensorRule, gather

__all__ = ["EMBEDDING", "HEAD", "Blueprint"]

EMBEDDING = "token_embedding"
HEAD = "head.weight"


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What a family's reader makes of config.json.

    rules: one for each tensor that the engine takes.
    tied: the head is the token embedding, so that the checkpoint may lack either.
    prefix: of most of the checkpoint's tensor names ("transformer."), where
        some checkpoints of the family are written without it; else "".
    """

    config: ModelConfig
    rules: tuple[TensorRule, ...]
    tied: bool
    prefix: str = ""

    def fill(self, available: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
        """The tensors under their canonical names. ModelFormatError if they do not fit.

        As in transformers, a checkpoint that says "tied" and yet holds an
        embedding and a head with different values is not tied, and one that
        holds only the head is tied to that.
        """
        rules = self.rules
        if self.prefix and not any(rule.source in available for rule in rules):
            rules = tuple(self._without_prefix(rule) for rule in rules)
        tensors = gather(self._present(rules, available), available, origin)
        head, embedding = tensors.get(HEAD), tensors.get(EMBEDDING)
        if embedding is None:
            tensors[EMBEDDING] = tensors.pop(HEAD)
        elif self.tied and head is not None and _equal(head.array, embedding.array):
            del tensors[HEAD]
        return tensors

    def _without_prefix(self, rule: TensorRule) -> TensorRule:
        return replace(rule, source=rule.source.removeprefix(self.prefix))

    def _present(
        self, rules: tuple[TensorRule, ...], available: Mapping[str, Tensor]
    ) -> list[TensorRule]:
        """All rules; of a tied pair, only those that the checkpoint has (one at least)."""
        if not self.tied:
            return list(rules)
        pair = [rule for rule in rules if rule.name in (EMBEDDING, HEAD)]
        absent = [rule for rule in pair if rule.source not in available]
        if len(absent) == len(pair):
            absent = [rule for rule in absent if rule.name == HEAD]
        return [rule for rule in rules if rule not in absent]


def _equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    same_memory = a.ctypes.data == b.ctypes.data and a.strides == b.strides
    return same_memory or np.array_equal(a, b)
