"""Open checkpoints and convert them to the engine's input: configuration, tensors, tokenizer.

The package uses Python and numpy. It imports torch only if the caller passes a torch module.
"""

from __future__ import annotations

from .checkpoints.loaded_model import LoadedModel, TokenizerParts
from .checkpoints.model_config import ModelConfig
from .checkpoints.tensors import PLAIN, Tensor
from .checkpoints.vision_config import VisionConfig
from .convert.conversion import convert_tensors, engine_dtype, native_matrices
from .convert.quant_mix import ENGINE_DTYPE, MIXTURES, convert_to_mixture
from .loader import open_model
from .torch_module import from_torch

__all__ = [
    "ENGINE_DTYPE",
    "MIXTURES",
    "PLAIN",
    "LoadedModel",
    "ModelConfig",
    "Tensor",
    "TokenizerParts",
    "VisionConfig",
    "convert_tensors",
    "convert_to_mixture",
    "engine_dtype",
    "from_torch",
    "native_matrices",
    "open_model",
]
