"""Read the metadata of GGUF files without their tensors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pybatcher.loading.checkpoints.fields import Fields
from pybatcher.loading.checkpoints.model_config import ModelConfig
from pybatcher.loading.families import read_gguf_blueprint
from pybatcher.loading.parts.gguf_contents import GgufContents

__all__ = ["read_config"]


def read_config(
    metadata: Fields, vocab_size: int, rope_divisors: NDArray[np.float64] | None
) -> ModelConfig:
    """Return the configuration of the model that the metadata describe."""
    contents = GgufContents(metadata=metadata, vocab_size=vocab_size, rope_divisors=rope_divisors)
    return read_gguf_blueprint(contents).config
