"""`GgufContents`: the parts of a GGUF file from which a family makes its blueprint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.fields import Fields
from ..checkpoints.tensors import Tensor
from .gguf_keys import ArchitectureKeys
from .gguf_rope import LongRopeDivisors

__all__ = ["GgufContents"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufContents:
    """The metadata and tensors of a GGUF file.

    vocab_size: rows of the token embedding; the key of that name may be absent, or wrong.
    rope_divisors: divisors of the rotary frequencies, (head_dim / 2,); None: no division.
    longrope: the divisors of LongRoPE; None: the file has none.
    tensors: the tensors by their names in the file.
    """

    metadata: Fields
    vocab_size: int
    rope_divisors: NDArray[np.float64] | None = None
    longrope: LongRopeDivisors | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """The value of `general.architecture`."""
        name: str = self.metadata.text("general.architecture")
        return name

    @property
    def keys(self) -> ArchitectureKeys:
        """The keys of the file's architecture."""
        return ArchitectureKeys(self.metadata, self.architecture)
