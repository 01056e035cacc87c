"""pybatcher's compiled engine, alone: no batcher, no asyncio."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pybatcher.engine import Engine

from .contestant import Contestant, Settings

__all__ = ["open_contestant"]


def open_contestant(checkpoint: Path, settings: Settings) -> Contestant:
    return PybatcherEngine(checkpoint, settings)


class PybatcherEngine:
    """See `Contestant`. Decoding samples greedily and feeds back what it drew."""

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        self._engine = Engine.load(
            checkpoint,
            dtype=settings.dtype,
            n_ctx=settings.n_ctx,
            n_parallel=settings.n_parallel,
            n_threads=settings.n_threads,
            n_ubatch=settings.n_batch,
        )

    def facts(self) -> dict[str, str]:
        version = importlib.metadata.version("pybatcher")
        description = {name: str(value) for name, value in self._engine.description().items()}
        return {"name": "pybatcher", "version": version} | description

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
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

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> list[float]:
        seq_ids = [self._engine.seq_new() for _ in prompts]
        for seq_id, prompt in zip(seq_ids, prompts, strict=True):
            self._engine.prefill_chunk(seq_id, list(prompt[:-1]))
        tokens = np.array([prompt[-1] for prompt in prompts], dtype=np.int32)
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            tokens = self._engine.decode_batch(seq_ids, tokens)
            times.append(time.perf_counter() - begin)
        for seq_id in seq_ids:
            self._engine.seq_remove(seq_id)
        return times
