"""llama.cpp scheduled as its server does: each pass decodes all sequences, then adds prompt rows.

A prefix that all arrivals share is computed in one sequence and copied to the others, which in a
unified KV cache only marks its cells: the most that llama.cpp offers, and more than its server
does by itself for requests that arrive together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.engines.interface import Arrival, Server, Settings
from bench.engines.llama_cpp import LlamaContext, Row
from bench.engines.open_loop import serve_in_steps

__all__ = ["open_server"]


def open_server(checkpoint: Path, settings: Settings) -> Server:
    return LlamaCppServer(checkpoint, settings)


@dataclass(slots=True)
class _Request:
    arrival: Arrival
    seq_id: int
    tokens: list[int]  # the prompt, then the sampled tokens
    n_computed: int = 0

    @property
    def n_prompt(self) -> int:
        return len(self.arrival.tokens)

    @property
    def ended(self) -> bool:
        return len(self.tokens) >= self.n_prompt + self.arrival.n_new


class LlamaCppServer:
    """A `Server` over llama.cpp. Greedy."""

    def __init__(self, checkpoint: Path, settings: Settings) -> None:
        self._context = LlamaContext(checkpoint, settings)
        self._shares = settings.share_prefixes
        self._requests: dict[int, _Request] = {}

    def facts(self) -> dict[str, str]:
        return self._context.facts()

    def serve(self, arrivals: Sequence[Arrival]) -> list[list[float]]:
        self._context.clear()
        self._requests = {}
        return serve_in_steps(arrivals, self._submit, self._step)

    def close(self) -> None:
        self._requests = {}

    def _submit(self, index: int, arrival: Arrival) -> None:
        self._requests[index] = _Request(arrival, index, list(arrival.tokens))

    def _step(self) -> list[int]:
        rows: list[Row] = []
        draws: dict[int, int] = {}  # the row of a request, by its index
        for index, count in self._seats():
            request = self._requests[index]
            for at in range(request.n_computed, request.n_computed + count):
                last = at == len(request.tokens) - 1
                if last:
                    draws[index] = len(rows)
                rows.append((request.tokens[at], at, request.seq_id, last))
            request.n_computed += count
        self._context.run(rows)
        for index, row in draws.items():
            request = self._requests[index]
            request.tokens.append(int(self._context.logits_of_row(row).argmax()))
            if request.ended:
                self._context.remove(request.seq_id)
                del self._requests[index]
        return list(draws)

    def _seats(self) -> Iterator[tuple[int, int]]:
        """Yield index and row count of each request in this pass; decoding ones first."""
        left = self._context.n_batch
        generating = [i for i, r in self._requests.items() if r.n_computed >= r.n_prompt]
        for index in generating:
            left -= 1
            yield index, 1
        donor = next(iter(self._requests.values()))
        for index, request in self._requests.items():
            if index in generating or not left:
                continue
            shared = request.arrival.n_shared if self._shares and request is not donor else 0
            if request.n_computed < shared:
                if donor.n_computed < shared or donor.arrival.n_shared != shared:
                    continue  # the shared prefix is not computed yet
                self._context.copy(donor.seq_id, request.seq_id, shared)
                request.n_computed = shared
            count = min(left, request.n_prompt - request.n_computed)
            left -= count
            yield index, count
