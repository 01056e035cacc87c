"""vLLM with requests that arrive over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.engines.interface import Arrival, Server, Settings
from bench.engines.open_loop import serve_in_steps
from bench.engines.vllm_cpu import VllmCpu

__all__ = ["open_server"]


def open_server(checkpoint: Path, settings: Settings) -> Server:
    return VllmServer(checkpoint, settings)


class VllmServer:
    """A `Server` over vLLM's engine. Greedy."""

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        self._engine = VllmCpu(checkpoint, settings)
        self._indices: dict[str, int] = {}  # the index of an arrival, by the engine's id

    def facts(self) -> dict[str, str]:
        return self._engine.facts()

    def serve(self, arrivals: Sequence[Arrival]) -> list[list[float]]:
        self._indices = {}
        return serve_in_steps(arrivals, self._submit, self._step)

    def close(self) -> None:
        self._engine.close()

    def _submit(self, index: int, arrival: Arrival) -> None:
        self._indices[self._engine.add(arrival.tokens, arrival.n_new)] = index

    def _step(self) -> list[int]:
        return [self._indices[name] for name in self._engine.step()]
