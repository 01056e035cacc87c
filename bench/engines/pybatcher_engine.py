"""pybatcher's compiled engine alone: no batcher, no asyncio."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.engines.interface import GGUF_TYPES, Settings, SteppedEngine
from pybatcher.engine import Engine

__all__ = ["describe", "engine_options", "model_of", "open_engine"]


def open_engine(checkpoint: Path, settings: Settings) -> SteppedEngine:
    return PybatcherEngine(checkpoint, settings)


def engine_options(checkpoint: Path, settings: Settings) -> dict[str, Any]:
    """Return the engine options that correspond to the settings."""
    return {
        "dtype": "auto" if settings.dtype in GGUF_TYPES else settings.dtype,
        "kv_dtype": settings.kv_dtype,
        "n_ctx": settings.n_ctx,
        "n_parallel": settings.n_parallel,
        "n_threads": settings.n_threads,
        "device": settings.device,
        # A machine with a GPU need not have memory for the weights twice.
        "weights_cache": "off" if settings.device == "cuda" else checkpoint.parent / "packed",
    }


def model_of(checkpoint: Path, settings: Settings) -> Path:
    """Return the model to load: for types that only GGUF files have, llama.cpp's file."""
    return (
        checkpoint / f"model-{settings.dtype}.gguf" if settings.dtype in GGUF_TYPES else checkpoint
    )


def describe(engine: Engine) -> dict[str, str]:
    """Return name, version and the engine's description."""
    facts = {"name": "pybatcher", "version": importlib.metadata.version("pybatcher-engine")}
    return facts | {name: str(value) for name, value in engine.description().items()}


class PybatcherEngine:
    """A `SteppedEngine` over `Engine`. Samples greedily and feeds the tokens back."""

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        self._engine = Engine.load(
            model_of(checkpoint, settings),
            n_ubatch=settings.n_batch,
            **engine_options(checkpoint, settings),
        )
        self._live: list[int] = []
        self._tokens = np.zeros(0, dtype=np.int32)

    def facts(self) -> dict[str, str]:
        return describe(self._engine)

    def logits(self, sequences: Sequence[Sequence[int]]) -> np.ndarray:
        seq_ids = [self._engine.seq_new() for _ in sequences]
        rows = [
            np.array(self._engine.decode_batch(seq_ids, list(tokens), logits=True)[1])
            for tokens in zip(*sequences, strict=True)
        ]
        for seq_id in seq_ids:
            self._engine.seq_remove(seq_id)
        return np.stack(rows, axis=1)

    def last_logits(self, tokens: Sequence[int]) -> np.ndarray:
        seq_id = self._engine.seq_new()
        logits = self._engine.prefill_chunk(seq_id, list(tokens), logits=True)
        self._engine.seq_remove(seq_id)
        return np.asarray(logits, dtype=np.float32)

    def prefill(self, tokens: Sequence[int]) -> float:
        seq_id = self._engine.seq_new()
        begin = time.perf_counter()
        self._engine.prefill_chunk(seq_id, list(tokens), logits=True)
        seconds = time.perf_counter() - begin
        self._engine.seq_remove(seq_id)
        return seconds

    def extend(self, prompts: Sequence[Sequence[int]]) -> None:
        for prompt in prompts:
            seq_id = self._engine.seq_new()
            self._engine.prefill_chunk(seq_id, list(prompt[:-1]))
            self._live.append(seq_id)
        last = np.array([prompt[-1] for prompt in prompts], dtype=np.int32)
        self._tokens = np.concatenate([self._tokens, last])

    def steps(self, count: int) -> list[float]:
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            self._tokens = self._engine.decode_batch(self._live, self._tokens)
            times.append(time.perf_counter() - begin)
        return times

    def clear(self) -> None:
        while self._live:
            self._engine.seq_remove(self._live.pop())
        self._tokens = np.zeros(0, dtype=np.int32)

    def close(self) -> None:
        self._engine.close()
