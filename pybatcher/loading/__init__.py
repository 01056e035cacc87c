"""From a checkpoint to what the engine takes: configuration, tensors, tokenizer.

Pure Python and numpy: no compiled engine, no torch unless a torch module is handed in.
"""

from __future__ import annotations

from .conversion import converted
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
    "converted",
    "from_torch",
    "open_model",
]
