"""Open checkpoints and convert them to the engine's input: configuration, tensors, tokenizer.

Pure Python and numpy: no compiled engine, and torch only where the caller passes a torch module.
"""

from __future__ import annotations

from .conversion import convert_tensors, engine_dtype, kept_matrices
from .loaded_model import LoadedModel, TokenizerParts
from .loader import open_model
from .mixtures import ENGINE_DTYPE, MIXTURES, convert_to_mixture
from .model_config import ModelConfig
from .tensors import Tensor
from .torch_module import from_torch

__all__ = [
    "ENGINE_DTYPE",
    "MIXTURES",
    "LoadedModel",
    "ModelConfig",
    "Tensor",
    "TokenizerParts",
    "convert_tensors",
    "convert_to_mixture",
    "engine_dtype",
    "from_torch",
    "kept_matrices",
    "open_model",
]
