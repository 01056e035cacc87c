"""What is measured, and how turns are taken: prompts of several lengths, steps of many sequences.

In a round everybody measures once, one after another: A B C, A B C, ... Machines drift and
neighbours come and go, so a ratio is taken within a round, and the median of the rounds' ratios
is the result. The first round warms up and is not counted.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .contestants.contestant import Settings

__all__ = ["Asked", "Plan", "Row", "add_plan_arguments", "numbers", "plan_from"]

Row = dict[str, Any]


class Asked(Protocol):
    """Who measures: a Worker, or the engine of this very process."""

    name: str

    def ask(self, call: str, **arguments: Any) -> Any:
        """See worker.answer."""


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
        """How many rows `run` gives."""
        return len(self.prefill) + len(self.batch_sizes)

    @property
    def n_turns(self) -> int:
        """How often `run` calls `on_turn` for each of those who measure."""
        return self.n_measures * (self.rounds + 1)

    @property
    def decode_length(self) -> int:
        """Positions that the longest sequence of decoding needs, in whole blocks."""
        # The first sequences live through all batch sizes, and with some engines through the
        # prompts of those who come after them.
        steps = (self.rounds + 1) * self.steps * len(self.batch_sizes)
        return _whole_blocks(self.prompt + steps + 2 * max(self.batch_sizes, default=1))

    def settings(self, dtype: str, n_threads: int, *, longest: int = 0) -> Settings:
        """Room for the largest batch, each sequence with as much as the longest needs.

        longest: more than that may be asked of one of them.
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
        self, contestants: Sequence[Asked], on_turn: Callable[[], None] = lambda: None
    ) -> Iterator[Row]:
        """Measure everything; a row as soon as it is there."""
        for length in self.prefill:

            def prefill(asked: Asked, turn: int, length: int = length) -> float:
                seconds = asked.ask("prefill", n_tokens=length, seed=turn)
                return float(length / seconds)

            rounds = self._rounds(contestants, prefill, on_turn)
            yield summary(f"prefill {length}", [c.name for c in contestants], rounds)
        live = 0
        for size in sorted(self.batch_sizes):
            for asked in contestants:
                asked.ask("extend", first=live, count=size - live, n_tokens=self.prompt)
            live = size

            def decode(asked: Asked, turn: int, size: int = size) -> float:
                return float(size / statistics.median(asked.ask("steps", count=self.steps)))

            rounds = self._rounds(contestants, decode, on_turn)
            yield summary(f"decode B={size}", [c.name for c in contestants], rounds)
        if live:
            for asked in contestants:
                asked.ask("clear")

    def _rounds(
        self,
        contestants: Sequence[Asked],
        measure: Callable[[Asked, int], float],
        on_turn: Callable[[], None],
    ) -> list[list[float]]:
        rounds = []
        for turn in range(self.rounds + 1):
            speeds = []
            for asked in contestants:
                speeds.append(measure(asked, turn))
                on_turn()
            rounds.append(speeds)
        return rounds[1:]


def summary(measure: str, names: Sequence[str], rounds: Sequence[Sequence[float]]) -> Row:
    """Medians of everybody's tokens a second, and of the first one's ratios to the others."""
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
    """ "1,2" is (1, 2)."""
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
