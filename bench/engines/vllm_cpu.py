"""vLLM on the CPU, step by step, in this process."""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.engines.interface import Settings, SteppedEngine

__all__ = ["VllmCpu", "open_engine"]

# vllm reads these when it is imported. The engine runs in this process, nothing is sent to a
# network, and the system places the threads, as for every other engine here.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "4",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
}


def open_engine(checkpoint: Path, settings: Settings) -> SteppedEngine:
    return VllmCpu(checkpoint, settings)


class VllmCpu:
    """A `SteppedEngine` over vLLM's engine. Decoding samples greedily."""

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        os.environ |= _ENVIRONMENT | {"OMP_NUM_THREADS": str(settings.n_threads)}
        import vllm

        self._vllm = vllm
        self._weights = checkpoint / "model.safetensors"
        self._dtype = {"bf16": "bfloat16", "f32": "float32"}[settings.dtype]
        self._room = settings.n_ctx // settings.n_parallel
        self._n_batch = settings.n_batch
        self._engine = vllm.LLM(
            str(checkpoint),
            skip_tokenizer_init=True,
            dtype=self._dtype,
            max_model_len=self._room,
            max_num_seqs=settings.n_parallel,
            max_num_batched_tokens=max(settings.n_batch, settings.n_parallel),
            enable_prefix_caching=settings.share_prefixes,
            max_logprobs=-1,
            logprobs_mode="raw_logits",
        ).llm_engine
        self._n_added = 0
        self._live: dict[str, int] = {}  # the number of tokens of each sequence, by its id

    def facts(self) -> dict[str, str]:
        return {
            "name": "vLLM",
            "version": importlib.metadata.version("vllm-cpu"),
            "torch": importlib.metadata.version("torch"),
            "weights": self._dtype,
            "max_num_batched_tokens": str(self._n_batch),
            "weight_bytes": str(self._weights.stat().st_size),
        }

    def logits(self, sequences: Sequence[Sequence[int]]) -> np.ndarray:
        return np.stack(
            [
                np.stack([self.last_logits(tokens[: i + 1]) for i in range(len(tokens))])
                for tokens in sequences
            ]
        )

    def last_logits(self, tokens: Sequence[int]) -> np.ndarray:
        name = self.add(tokens, 1, logprobs=-1)
        found = self._run_until({name})[name].outputs[0].logprobs[0]
        logits = np.empty(len(found), dtype=np.float32)
        for token, one in found.items():
            logits[token] = one.logprob
        return logits

    def prefill(self, tokens: Sequence[int]) -> float:
        begin = time.perf_counter()
        self._run_until({self.add(tokens, 1)})
        return time.perf_counter() - begin

    def extend(self, prompts: Sequence[Sequence[int]]) -> None:
        # Sequences that were added before continue to generate; that time is not counted.
        names = {self.add(prompt, self._room - len(prompt)) for prompt in prompts}
        self._live |= dict.fromkeys(names, 0)
        self._run_until(names)

    def steps(self, count: int) -> list[float]:
        before = dict(self._live)
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - begin)
        for name, n_tokens in self._live.items():
            if (got := n_tokens - before[name]) != count:
                raise RuntimeError(f"{count} steps gave a sequence {got} tokens: not all were live")
        return times

    def clear(self) -> None:
        self._engine.abort_request(list(self._live))
        self._live = {}
        while self._engine.has_unfinished_requests():
            self.step()

    def close(self) -> None:
        self._live = {}

    def add(self, tokens: Sequence[int], n_new: int, **parameters: Any) -> str:
        """Add a greedy request for exactly `n_new` tokens; return its id."""
        self._n_added += 1
        name = str(self._n_added)
        prompt = self._vllm.inputs.TokensPrompt(prompt_token_ids=list(tokens))
        asked = {"max_tokens": n_new, "temperature": 0.0, "ignore_eos": True, "detokenize": False}
        self._engine.add_request(name, prompt, self._vllm.SamplingParams(**asked, **parameters))
        return name

    def step(self) -> dict[str, Any]:
        """Compute once; return the outputs of the requests that got a token, by their ids."""
        outputs = {output.request_id: output for output in self._engine.step()}
        for name, output in outputs.items():
            if name in self._live:
                self._live[name] = len(output.outputs[0].token_ids)
        return outputs

    def _run_until(self, names: set[str]) -> dict[str, Any]:
        """Step until each of the requests has a token; return its output then."""
        found: dict[str, Any] = {}
        while names - found.keys():
            found = self.step() | found
        return found
