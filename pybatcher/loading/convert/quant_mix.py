"""Quantisation mixes: the super-block type of each matrix of a checkpoint quantised at load.

The rules are llama.cpp's for files of the same names, so that a mix has the size of such a file:
https://github.com/ggml-org/llama.cpp/blob/master/src/llama-quant.cpp (llama_tensor_get_type).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoints.blocks import BLOCKS
from ..checkpoints.blueprint import EMBEDDING, HEAD
from ..checkpoints.model_config import ModelConfig
from ..checkpoints.tensors import Tensor
from .conversion import convert, convert_tensors, target_dtype

__all__ = ["ENGINE_DTYPE", "MIXTURES", "Quantise", "convert_to_mixture", "mixture_dtypes"]

Quantise = Callable[[str, tuple[NDArray[Any], str], str], NDArray[np.uint8]]
"""A function that quantises: it gets a matrix's name, its (array, dtype) and the super-block type,
and returns the blocks."""

MIXTURES = {"q4_k_m": "q4_k", "q5_k_m": "q5_k", "q6_k": "q6_k"}
"""The dtype of most matrices, by the name of the quantisation mix."""

ENGINE_DTYPE = "int8"
"""The dtype of matrices whose rows are not a whole number of super-blocks."""

_PLAIN = (
    ".router.weight",
    ".gated_delta_net.a.weight",
    ".gated_delta_net.b.weight",
    ".convolution",
)
_FINER = "q6_k"
_WIDTH = BLOCKS[_FINER].n_elements
_FEW_EXPERTS, _LAYERS_OF_70B = 8, 80  # llama.cpp has special rules for them


def mixture_dtypes(
    tensors: Mapping[str, Tensor], mixture: str, config: ModelConfig
) -> dict[str, str]:
    """Return the dtype of each matrix that is quantised, by name.

    A matrix whose rows are not whole super-blocks gets ENGINE_DTYPE. Routers, learned positions,
    gates and convolutions of recurrent layers, and vision towers are not quantised. The head has
    more bits, and so have the value and down projections of half the layers.
    """
    dtypes = {}
    for name, tensor in tensors.items():
        is_plain = name == "position_embedding" or name.startswith("tower.")
        is_plain = is_plain or name.endswith(_PLAIN)
        if len(tensor.shape) == 2 and not is_plain:
            dtypes[name] = _dtype_of(name, mixture, config, is_tied=HEAD not in tensors)
            if tensor.shape[1] % _WIDTH:
                dtypes[name] = ENGINE_DTYPE
    return dtypes


def _dtype_of(name: str, mixture: str, config: ModelConfig, *, is_tied: bool) -> str:
    usual = MIXTURES[mixture]
    if name == HEAD or (name == EMBEDDING and is_tied):
        return _FINER
    if not name.startswith("layers."):
        return usual
    _, layer, *_, part, _ = name.split(".")
    if config.moe is not None and config.moe.n_experts == _FEW_EXPERTS:
        if part in ("k", "v"):
            return ENGINE_DTYPE
        if part == "o" and usual == "q4_k":
            return "q5_k"
    if part in ("v", "down") and _has_more_bits(int(layer), config.n_layers):
        return _FINER
    shares_values = config.n_layers == _LAYERS_OF_70B and config.n_heads != config.n_kv_heads
    return "q5_k" if part == "v" and usual == "q4_k" and shares_values else usual


def _has_more_bits(layer: int, n_layers: int) -> bool:
    """Return True for layers of the first and last eighth, and for every third layer between."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


def convert_to_mixture(
    tensors: Mapping[str, Tensor],
    mixture: str,
    config: ModelConfig,
    origin: str,
    quantise: Quantise,
) -> tuple[dict[str, Any], set[str]]:
    """Return the tensors for an engine of ENGINE_DTYPE, and the names that keep their own dtype.

    The tensors are as `convert_tensors` returns them; matrices are quantised when the engine packs
    them. Warns about matrices that become ENGINE_DTYPE because their rows are not whole
    super-blocks.
    """
    dtypes = mixture_dtypes(tensors, mixture, config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a mix rounds a checkpoint's own blocks on purpose
        entries = convert_tensors(tensors, ENGINE_DTYPE, origin)
    native = {name for name, dtype in dtypes.items() if dtype != ENGINE_DTYPE}
    for name in native:
        tensor, dtype = tensors[name], dtypes[name]
        made = partial(_quantised, name, tensor, dtype, quantise)
        is_there = tensor.dtype == dtype
        entries[name] = (tensor.array, dtype) if is_there else (made, dtype, *tensor.shape)
    odd = sum(tensors[name].shape[1] % _WIDTH != 0 for name in dtypes)
    if odd:
        warnings.warn(
            f"{origin}: {odd} of {len(dtypes)} matrices are {ENGINE_DTYPE} instead: their rows are "
            f"no whole super-blocks of {_WIDTH}",
            stacklevel=3,
        )
    return entries, native


def _quantised(name: str, tensor: Tensor, dtype: str, quantise: Quantise) -> NDArray[np.uint8]:
    """Quantise a matrix; a format that is not native is converted to f32 first."""
    if tensor.stored is not None:
        return quantise(name, (tensor.stored.make("f32"), "f32"), dtype)
    target = target_dtype(tensor.dtype, "f32")
    array = tensor.array if target == tensor.dtype else convert(tensor, target)
    return quantise(name, (array, target), dtype)
