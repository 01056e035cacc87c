"""OpenVINO GenAI's ContinuousBatchingPipeline, step by step."""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from bench.convert.to_openvino import to_openvino
from bench.engines.interface import Settings, SteppedEngine

__all__ = ["Pipeline", "open_engine"]

BLOCK = 32  # positions of a KV block on the CPU
KV_TYPES = {"f32": "f32", "f16": "f16", "bf16": "bf16", "int8": "u8"}


def open_engine(checkpoint: Path, settings: Settings) -> SteppedEngine:
    return OpenVinoGenAI(checkpoint, settings)


class Pipeline:
    """The pipeline, with the settings that it has and its own defaults for the others."""

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        self.path = to_openvino(checkpoint, settings.dtype)
        self.properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": settings.n_threads}
        if settings.kv_dtype != "auto":
            self.properties["KV_CACHE_PRECISION"] = KV_TYPES[settings.kv_dtype]
        if os.environ.get("ONEDNN_MAX_CPU_ISA"):
            # OpenVINO chooses by the CPU, which can multiply bf16; no set in bench/common/isa.py
            # does.
            self.properties["INFERENCE_PRECISION_HINT"] = "f32"
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = settings.n_batch
        scheduler.max_num_seqs = settings.n_parallel
        scheduler.num_kv_blocks = -(-settings.n_ctx // BLOCK) + settings.n_parallel
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = settings.share_prefixes
        self._scheduler = scheduler
        self._pipeline: Any = None
        self._next_id = 0
        self.max_length = settings.n_ctx

    @property
    def opened(self) -> Any:
        if self._pipeline is None:
            self._pipeline = openvino_genai.ContinuousBatchingPipeline(
                self.path, self._scheduler, "CPU", self.properties
            )
        return self._pipeline

    def facts(self) -> dict[str, str]:
        core = openvino.Core()
        return {
            "name": "OpenVINO GenAI",
            "version": importlib.metadata.version("openvino-genai"),
            "openvino": openvino.get_version(),
            "capabilities": " ".join(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")),
            "inference_precision": core.get_property(
                "CPU", "INFERENCE_PRECISION_HINT"
            ).get_type_name(),
            "kv_cache_precision": core.get_property("CPU", "KV_CACHE_PRECISION").get_type_name(),
            "max_num_batched_tokens": str(self._scheduler.max_num_batched_tokens),
            "weights": self.path.name.removeprefix("openvino-"),
            "weight_bytes": str((self.path / "openvino_model.bin").stat().st_size),
        }

    def add(self, tokens: Sequence[int], n_new: int) -> Any:
        """Add a greedy request for exactly `n_new` tokens; return its handle."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = n_new
        config.ignore_eos = True
        config.do_sample = False
        self._next_id += 1
        ids = openvino.Tensor(np.array([tokens], dtype=np.int64))
        return self.opened.add_request(self._next_id, ids, config)

    def step(self) -> None:
        self.opened.step()


def tokens_of(handle: Any) -> int:
    """Return the number of tokens that have come since the last call."""
    count = 0
    while handle.can_read():
        count += sum(len(output.generated_ids) for output in handle.read().values())
    return count


class OpenVinoGenAI:
    """A `SteppedEngine` over OpenVINO GenAI. Decoding samples greedily."""

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        self._pipeline = Pipeline(checkpoint, settings)
        self._room = settings.n_ctx // settings.n_parallel
        self._live: list[Any] = []

    def facts(self) -> dict[str, str]:
        return self._pipeline.facts()

    def logits(self, sequences: Sequence[Sequence[int]]) -> np.ndarray:
        # The pipeline returns no logits, so the same model is compiled without its paged attention.
        model = openvino.Core().read_model(self._pipeline.path / "openvino_model.xml")
        compiled = openvino.compile_model(model, "CPU", self._pipeline.properties)
        ids = np.array(sequences, dtype=np.int64)
        inputs = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "position_ids": np.broadcast_to(np.arange(ids.shape[1]), ids.shape),
            "beam_idx": np.arange(len(ids), dtype=np.int32),
        }
        names = {name for port in compiled.inputs for name in port.get_names()}
        request = compiled.create_infer_request()
        result = request.infer({name: a for name, a in inputs.items() if name in names})
        return np.array(result["logits"], dtype=np.float32)

    def last_logits(self, tokens: Sequence[int]) -> np.ndarray:
        return self.logits([tokens])[0, -1]

    def prefill(self, tokens: Sequence[int]) -> float:
        begin = time.perf_counter()
        handle = self._pipeline.add(tokens, 1)
        while not tokens_of(handle):
            self._pipeline.step()
        return time.perf_counter() - begin

    def extend(self, prompts: Sequence[Sequence[int]]) -> None:
        # Sequences that were added before continue to generate; that time is not counted.
        handles = [self._pipeline.add(p, self._room - len(p)) for p in prompts]
        waiting = list(handles)
        while waiting:
            self._pipeline.step()
            waiting = [handle for handle in waiting if not tokens_of(handle)]
        self._live += handles

    def steps(self, count: int) -> list[float]:
        for handle in self._live:
            tokens_of(handle)
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            self._pipeline.step()
            times.append(time.perf_counter() - begin)
        for handle in self._live:
            if (got := tokens_of(handle)) != count:
                raise RuntimeError(f"{count} steps gave a sequence {got} tokens: not all were live")
        return times

    def clear(self) -> None:
        for handle in self._live:
            handle.cancel()
        self._live = []
        while self._pipeline.opened.has_non_finished_requests():
            self._pipeline.step()

    def close(self) -> None:
        self._live = []
