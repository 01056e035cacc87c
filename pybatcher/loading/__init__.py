"""Open checkpoints and convert them to the engine's input: configuration, tensors, tokenizer.

Pure Python and numpy: no compiled engine, and torch only where the caller passes a torch module.
"""

from __future__ import annotations

from .conversion import convert_tensors, engine_dtype, kept_matrices
from .loaded_model import LoadedModel, TokenizerParts
from .loader import open_model
from .model_config import ModelConfig
from .tensors import Tensor
from .torch_module import from_torch

__all__ = [
    "LoadedModel",
    "ModelConfig",
    "Tensor",
    "TokenizerParts",
    "convert_tensors",
    "engine_dtype",
    "from_torch",
    "kept_matrices",
    "open_model",
]
