"""llama.cpp through the batch interface of llama-cpp-python."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import llama_cpp
import numpy as np

from bench.to_gguf import to_gguf

from .contestant import Contestant, Settings

__all__ = ["open_contestant"]

Row = tuple[int, int, int, bool]  # token, position, sequence, wants logits


def open_contestant(checkpoint: Path, settings: Settings) -> Contestant:
    return LlamaCpp(checkpoint, settings)


@llama_cpp.llama_log_callback
def _silence(level: int, text: bytes, user_data: object) -> None:
    """llama.cpp tells the terminal all it does unless something listens."""


class LlamaCpp:
    """See `Contestant`.

    Decoding feeds back the same tokens over and over instead of what a sampler would draw: its
    times are without sampling, which favours it a little.
    """

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        if settings.dtype != "bf16":
            raise ValueError(f"dtype is {settings.dtype!r}; the GGUF file is written in bf16")
        llama_cpp.llama_log_set(_silence, None)
        llama_cpp.llama_backend_init()
        path = str(to_gguf(checkpoint)).encode()
        self._model = llama_cpp.llama_model_load_from_file(
            path, llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path.decode()}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = settings.n_ctx
        params.n_batch = params.n_ubatch = settings.n_batch
        params.n_seq_max = settings.n_parallel
        params.n_threads = params.n_threads_batch = settings.n_threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context of n_ctx={settings.n_ctx}")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch = llama_cpp.llama_batch_init(settings.n_batch, 0, 1)
        self._n_batch = settings.n_batch

    def facts(self) -> dict[str, str]:
        return {
            "name": "llama.cpp",
            "version": "llama-cpp-python " + importlib.metadata.version("llama-cpp-python"),
            "system": llama_cpp.llama_print_system_info().decode().strip(),
        }

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        self._prefill(tokens, 0)
        pointer = llama_cpp.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(pointer, shape=(self._vocab_size,)).copy()

    def prefill(self, tokens: Sequence[int]) -> float:
        self._clear()
        begin = time.perf_counter()
        self._prefill(tokens, 0, clear=False)
        return time.perf_counter() - begin

    def decode(self, prompts: Sequence[Sequence[int]], steps: int) -> list[float]:
        self._clear()
        for seq_id, prompt in enumerate(prompts):
            self._prefill(prompt[:-1], seq_id, clear=False)
        times = []
        for step in range(steps):
            begin = time.perf_counter()
            self._run(
                (prompt[-1], len(prompt) - 1 + step, seq_id, True)
                for seq_id, prompt in enumerate(prompts)
            )
            times.append(time.perf_counter() - begin)
        return times

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)

    def _prefill(self, tokens: Sequence[int], seq_id: int, *, clear: bool = True) -> None:
        if clear:
            self._clear()
        last = len(tokens) - 1
        for begin in range(0, len(tokens), self._n_batch):
            end = min(begin + self._n_batch, len(tokens))
            self._run((tokens[p], p, seq_id, p == last) for p in range(begin, end))

    def _run(self, rows: Iterable[Row]) -> None:
        batch, count = self._batch, 0
        for i, (token, position, seq_id, wants_logits) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = seq_id
            batch.logits[i] = wants_logits
            count = i + 1
        batch.n_tokens = count
        if llama_cpp.llama_decode(self._context, batch) != 0:
            raise RuntimeError(f"llama.cpp failed on a batch of {count} rows")
        llama_cpp.llama_synchronize(self._context)
