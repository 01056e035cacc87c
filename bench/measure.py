"""What is measured: one long prompt, and steps of many sequences."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .contestants.contestant import Settings

__all__ = ["Measure", "Plan", "add_plan_arguments", "plan_from"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A request to a contestant and how its answer becomes tokens a second."""

    name: str
    request: dict[str, Any]

    def run(self, ask: Callable[[dict[str, Any]], Any]) -> float:
        """Tokens a second. Of decode steps the median counts, so a hiccup does not."""
        seconds = ask(self.request)
        if self.request["call"] == "prefill":
            return float(self.request["n_tokens"] / seconds)
        return float(self.request["n_sequences"] / statistics.median(seconds))


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes of a benchmark."""

    prefill: int
    prompt: int
    steps: int
    batch_sizes: tuple[int, ...]
    rounds: int

    def measures(self) -> list[Measure]:
        prefill = {"call": "prefill", "n_tokens": self.prefill}
        decode = {"call": "decode", "n_tokens": self.prompt, "steps": self.steps}
        return [Measure(f"prefill {self.prefill}", prefill)] + [
            Measure(f"decode B={size}", decode | {"n_sequences": size}) for size in self.batch_sizes
        ]

    def settings(self, dtype: str, n_threads: int) -> Settings:
        """Room for the largest batch, each sequence with as much as the longest needs."""
        n_parallel = max(self.batch_sizes)
        longest = max(self.prefill, self.prompt + self.steps)
        length = -(-longest // 256) * 256
        return Settings(
            dtype=dtype, n_ctx=length * n_parallel, n_parallel=n_parallel, n_threads=n_threads
        )


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", type=int, default=512, help="tokens of the long prompt")
    parser.add_argument("--prompt", type=int, default=128, help="tokens before decoding")
    parser.add_argument("--steps", type=int, default=32, help="decode steps")
    parser.add_argument("--batch-sizes", default="1,4,8,16,32")
    parser.add_argument("--rounds", type=int, default=5)


def plan_from(arguments: argparse.Namespace) -> Plan:
    return Plan(
        prefill=arguments.prefill,
        prompt=arguments.prompt,
        steps=arguments.steps,
        batch_sizes=tuple(int(size) for size in arguments.batch_sizes.split(",")),
        rounds=arguments.rounds,
    )
