"""Measure prefill of several lengths and decode steps of several batch sizes, engines in turns.

In a round every engine measures once, one after another: A B C, A B C, ... A machine's speed
drifts with time and load, so that a ratio is taken within a round, and the median of the rounds'
ratios is the result. The first round warms up and is not counted.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.engines.interface import Settings

__all__ = ["EngineProxy", "Plan", "Row", "add_plan_arguments", "numbers", "plan_from"]

Row = dict[str, Any]


class EngineProxy(Protocol):
    """An engine that answers calls: a Worker, or the engine in this process."""

    name: str

    def ask(self, call: str, **arguments: Any) -> Any:
        """Carry out a call and return its result, as `worker.answer` does."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a benchmark.

    prefill: lengths of single prompts. prompt: tokens before decoding. steps: decode steps of a
    round. batch_sizes: of decoding, ascending.
    """

    prefill: tuple[int, ...]
    prompt: int
    steps: int
    batch_sizes: tuple[int, ...]
    rounds: int

    @property
    def n_measures(self) -> int:
        """Number of rows that `run` yields."""
        return len(self.prefill) + len(self.batch_sizes)

    @property
    def n_turns(self) -> int:
        """Number of times that `run` calls `on_turn` per engine."""
        return self.n_measures * (self.rounds + 1)

    @property
    def decode_length(self) -> int:
        """Positions of the longest decoded sequence, in whole blocks."""
        # The first sequences live through all batch sizes, and with some engines through the
        # prompts of the sequences added after them.
        steps = (self.rounds + 1) * self.steps * len(self.batch_sizes)
        return _whole_blocks(self.prompt + steps + 2 * max(self.batch_sizes, default=1))

    def settings(self, dtype: str, n_threads: int, *, longest: int = 0) -> Settings:
        """Return settings with KV for the largest batch, every sequence of the longest length.

        longest: a length that single prompts may also have.
        """
        n_parallel = max(self.batch_sizes, default=1)
        length = max(self.decode_length, *map(_whole_blocks, (longest, *self.prefill)))
        return Settings(
            dtype=dtype,
            n_ctx=length * n_parallel,
            n_parallel=n_parallel,
            n_threads=n_threads,
        )

    def run(
        self, engines: Sequence[EngineProxy], on_turn: Callable[[], None] = lambda: None
    ) -> Iterator[Row]:
        """Measure everything; yield each row as soon as it is complete."""
        for length in self.prefill:

            def prefill(engine: EngineProxy, turn: int, length: int = length) -> float:
                seconds = engine.ask("prefill", n_tokens=length, seed=turn)
                return float(length / seconds)

            rounds = self._rounds(engines, prefill, on_turn)
            yield summary(f"prefill {length}", [c.name for c in engines], rounds)
        live = 0
        for size in sorted(self.batch_sizes):
            for engine in engines:
                engine.ask("extend", first=live, count=size - live, n_tokens=self.prompt)
            live = size

            def decode(engine: EngineProxy, turn: int, size: int = size) -> float:
                return float(size / statistics.median(engine.ask("steps", count=self.steps)))

            rounds = self._rounds(engines, decode, on_turn)
            yield summary(f"decode B={size}", [c.name for c in engines], rounds)
        if live:
            for engine in engines:
                engine.ask("clear")

    def _rounds(
        self,
        engines: Sequence[EngineProxy],
        measure: Callable[[EngineProxy, int], float],
        on_turn: Callable[[], None],
    ) -> list[list[float]]:
        rounds = []
        for turn in range(self.rounds + 1):
            speeds = []
            for engine in engines:
                speeds.append(measure(engine, turn))
                on_turn()
            rounds.append(speeds)
        return rounds[1:]


def summary(measure: str, names: Sequence[str], rounds: Sequence[Sequence[float]]) -> Row:
    """Return the medians of tokens a second, and of the first engine's ratios to the others."""
    return {
        "measure": measure,
        "median": {
            name: statistics.median(speeds[i] for speeds in rounds) for i, name in enumerate(names)
        },
        "ratio": {
            name: statistics.median(speeds[0] / speeds[i] for speeds in rounds)
            for i, name in enumerate(names)
            if i
        },
        "rounds": [list(speeds) for speeds in rounds],
    }


def _whole_blocks(length: int) -> int:
    return -(-(length + 1) // 256) * 256


def numbers(text: str) -> tuple[int, ...]:
    """Parse "1,2" as (1, 2)."""
    return tuple(int(number) for number in text.split(",") if number)


def add_plan_arguments(
    parser: argparse.ArgumentParser, *, threads: str = "2", prefill: str = "512", rounds: int = 5
) -> None:
    parser.add_argument("--threads", default=threads)
    parser.add_argument("--prefill", default=prefill, help="lengths of single prompts")
    parser.add_argument("--prompt", type=int, default=128, help="tokens before decoding")
    parser.add_argument("--steps", type=int, default=8, help="decode steps of a round")
    parser.add_argument("--batch-sizes", default="1,4,8,16,32")
    parser.add_argument("--rounds", type=int, default=rounds)


def plan_from(arguments: argparse.Namespace) -> Plan:
    return Plan(
        prefill=numbers(arguments.prefill),
        prompt=arguments.prompt,
        steps=arguments.steps,
        batch_sizes=numbers(arguments.batch_sizes),
        rounds=arguments.rounds,
    )
