"""OpenVINO GenAI's ContinuousBatchingPipeline with requests that arrive over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.engines.interface import Arrival, Server, Settings
from bench.engines.open_loop import serve_in_steps
from bench.engines.openvino_genai import Pipeline, tokens_of

__all__ = ["open_server"]


def open_server(checkpoint: Path, settings: Settings) -> Server:
    return OpenVinoServer(checkpoint, settings)


class OpenVinoServer:
    """A `Server` over OpenVINO GenAI. Greedy."""

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        self._pipeline = Pipeline(checkpoint, settings)
        self._handles: dict[int, Any] = {}
        assert self._pipeline.opened  # opens the pipeline before requests arrive

    def facts(self) -> dict[str, str]:
        return self._pipeline.facts()

    def serve(self, arrivals: Sequence[Arrival]) -> list[list[float]]:
        self._handles = {}
        return serve_in_steps(arrivals, self._submit, self._step)

    def close(self) -> None:
        self._handles = {}

    def _submit(self, index: int, arrival: Arrival) -> None:
        self._handles[index] = self._pipeline.add(arrival.tokens, arrival.n_new)

    def _step(self) -> list[int]:
        self._pipeline.step()
        return [i for i, handle in self._handles.items() for _ in range(tokens_of(handle))]
