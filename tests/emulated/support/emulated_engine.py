"""Helpers of the tests on an emulated GPU: small engines, tokens, what the GPU is still lent."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pybatcher import _core
from pybatcher.engine import Engine

ON_GPU = os.environ.get("PYBATCHER_TEST_GPU") == "real"  # and on no emulated one
VOCAB = 203
BLOCK = 16  # positions of a KV block
SEGMENT = 256  # positions after which attention begins a new partial softmax state

RECURRENT = {  # the name of their layers whose states are kept where blocks and sequences end
    "qwen3_5": "linear_attention",
    "qwen3_5_moe": "linear_attention",
    "lfm2": "conv",
    "lfm2_moe": "conv",
}

Floats = NDArray[np.float32]


def load_engine(path: Path | None, **options: Any) -> Engine:
    sizes: dict[str, Any] = {"n_ctx": 1024, "n_parallel": 16, "n_threads": 1, "block_size": BLOCK}
    return Engine.load(path, device="cuda", **{**sizes, **options})


def few_layers(architecture: str) -> dict[str, Any]:
    """Fields of a checkpoint with a layer or two of each kind."""
    if architecture == "gemma4":  # it needs all to share what it shares
        return {}
    if architecture in RECURRENT:
        return {"num_hidden_layers": 2, "layer_types": [RECURRENT[architecture], "full_attention"]}
    return {"n_layer" if architecture == "gpt2" else "num_hidden_layers": 2}


def tokens_of(n: int, seed: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, VOCAB, n).tolist()
    return tokens


def not_given_back() -> str:
    """What all engines of this process hold of the GPU: "2 allocations, 1 event"; "" if nothing."""
    ask = ctypes.CDLL(_core.__file__).emulated_gpu_not_given_back
    ask.restype = ctypes.c_char_p
    text: bytes = ask()
    return text.decode()


def calls_of(function: str) -> int:
    """How often this process has called a function of the emulated driver."""
    ask = ctypes.CDLL(_core.__file__).emulated_gpu_calls_of
    ask.argtypes = [ctypes.c_char_p]
    n: int = ask(function.encode())
    return n
