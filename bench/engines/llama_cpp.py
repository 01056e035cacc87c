"""llama.cpp through the batch interface of llama-cpp-python."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import llama_cpp
import numpy as np

from bench.convert.to_gguf import gguf_of
from bench.engines.interface import Settings, SteppedEngine

__all__ = ["LlamaContext", "Row", "open_engine"]

Row = tuple[int, int, int, bool]  # token, position, sequence, wants logits

KV_TYPES = {"f32": 0, "f16": 1, "int8": 8, "bf16": 30}  # ggml_type


def open_engine(checkpoint: Path, settings: Settings) -> SteppedEngine:
    return LlamaCpp(checkpoint, settings)


@llama_cpp.llama_log_callback
def _silence(level: int, text: bytes, user_data: object) -> None:
    """Drop log messages: without a callback llama.cpp prints them to the terminal."""


class LlamaContext:
    """A llama.cpp model and context."""

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        llama_cpp.llama_log_set(_silence, None)
        llama_cpp.llama_backend_init()
        path = gguf_of(checkpoint, settings.dtype)
        self._model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = settings.n_ctx
        params.n_batch = params.n_ubatch = settings.n_batch
        params.n_seq_max = settings.n_parallel
        params.n_threads = params.n_threads_batch = settings.n_threads
        params.kv_unified = settings.share_prefixes  # copying a prefix then costs nothing
        if settings.kv_dtype != "auto":
            params.type_k = params.type_v = KV_TYPES[settings.kv_dtype]
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context of n_ctx={settings.n_ctx}")
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._batch = llama_cpp.llama_batch_init(settings.n_batch, 0, 1)
        self._dtype = settings.dtype
        self.n_batch = settings.n_batch

    def facts(self) -> dict[str, str]:
        return {
            "name": "llama.cpp",
            "version": "llama-cpp-python " + importlib.metadata.version("llama-cpp-python"),
            "weights": {"int8": "Q8_0, pure", "int4": "Q4_0, pure"}.get(self._dtype, self._dtype),
            "weight_bytes": str(llama_cpp.llama_model_size(self._model)),
            "system": llama_cpp.llama_print_system_info().decode().strip(),
        }

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)

    def copy(self, source: int, target: int, length: int) -> None:
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_cp(memory, source, target, 0, length)

    def remove(self, seq_id: int) -> None:
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_rm(memory, seq_id, -1, -1)

    def run(self, rows: Iterable[Row]) -> None:
        """Run one forward pass over at most n_batch rows. Raises RuntimeError."""
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

    def append(self, seq_id: int, tokens: Sequence[int], *, every_logits: bool = False) -> None:
        """Compute a sequence from its start, n_batch rows a pass, with the last row's logits."""
        last = len(tokens) - 1
        for begin in range(0, len(tokens), self.n_batch):
            end = min(begin + self.n_batch, len(tokens))
            self.run((tokens[p], p, seq_id, every_logits or p == last) for p in range(begin, end))

    def logits_of_row(self, row: int) -> np.ndarray:
        """Return the logits of a row of the last pass: float32 (vocab,), a view."""
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, shape=(self._vocab_size,))


class LlamaCpp:
    """A `SteppedEngine` over llama.cpp.

    Decoding feeds back the same tokens instead of sampled ones: its times exclude sampling, which
    favours it a little.
    """

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        self._context = LlamaContext(checkpoint, settings)
        self._live: list[tuple[int, int]] = []  # token, position

    def facts(self) -> dict[str, str]:
        return self._context.facts()

    def logits(self, sequences: Sequence[Sequence[int]]) -> np.ndarray:
        results = []
        for tokens in sequences:
            if len(tokens) > self._context.n_batch:
                raise ValueError(f"{len(tokens)} tokens; one pass takes {self._context.n_batch}")
            self._context.clear()
            self._context.append(0, tokens, every_logits=True)
            rows = range(len(tokens))
            results.append(np.stack([self._context.logits_of_row(row) for row in rows]))
        self._context.clear()
        return np.stack(results)

    def last_logits(self, tokens: Sequence[int]) -> np.ndarray:
        self._context.append(0, tokens)
        logits = self._context.logits_of_row(-1).copy()
        self._context.clear()
        return logits

    def prefill(self, tokens: Sequence[int]) -> float:
        begin = time.perf_counter()
        self._context.append(0, tokens)
        seconds = time.perf_counter() - begin
        self._context.clear()
        return seconds

    def extend(self, prompts: Sequence[Sequence[int]]) -> None:
        for prompt in prompts:
            self._context.append(len(self._live), prompt[:-1])
            self._live.append((prompt[-1], len(prompt) - 1))

    def steps(self, count: int) -> list[float]:
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            rows = [(token, at, seq_id, True) for seq_id, (token, at) in enumerate(self._live)]
            self._context.run(rows)
            times.append(time.perf_counter() - begin)
            self._live = [(token, at + 1) for token, at in self._live]
        return times

    def clear(self) -> None:
        self._context.clear()
        self._live = []

    def close(self) -> None:
        self.clear()
