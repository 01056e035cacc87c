"""Measure the engine's share of the cores beside other programs that use the same cores.

    python -m bench.neighbours [model directory]

Every scenario is measured in slices of a tenth of a second that alternate with slices of the
engine alone, so that other load on the machine affects both. A share is the throughput beside the
neighbour over the fair one: the throughput alone, times the engine's part of all busy threads.
Results go to bench/results/neighbours.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.machine import describe_run
from pybatcher.engine import Engine
from pybatcher.models import tiny_path

RESULT = Path(__file__).parents[1] / "results" / "neighbours.json"
SLICE = 0.1  # seconds
ENOUGH = 0.8  # a share that counts as fair
CONTEXT = 300  # positions after which a sequence starts again


class Loop:
    """A thread that repeats `work` between `go` and `rest`."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.rounds = 0
        self._work = work
        self._let = threading.Event()
        self._ends = False
        self._rests = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends:
            self._rests.set()
            self._let.wait()
            self._rests.clear()
            while self._let.is_set() and not self._ends:
                self._work()
                self.rounds += 1

    def go(self) -> None:
        self._let.set()

    def rest(self) -> None:
        """Stop after the current round; return once the thread is idle."""
        self._let.clear()
        self._rests.wait()

    def end(self) -> None:
        self._ends = True
        self._let.set()
        self._thread.join()


def decoder(model: str, n_sequences: int, n_threads: int) -> Loop:
    """Return a loop that decodes one token of every sequence per round."""
    engine = Engine.load(model, n_ctx=4096, n_parallel=n_sequences, n_threads=n_threads)
    ids = [engine.seq_new(str(i)) for i in range(n_sequences)]
    for seq_id in ids:
        engine.prefill_chunk(seq_id, list(range(1, 17)))

    def step() -> None:
        engine.decode_batch(ids, [5] * n_sequences)
        if engine.seq_length(ids[0]) > CONTEXT:
            for seq_id in ids:
                engine.seq_remove(seq_id, 16)

    return Loop(step)


def rounds_a_second(loop: Loop, beside: Sequence[Loop]) -> float:
    """Return `loop`'s rounds a second in one slice, with all of `beside` running."""
    for other in beside:
        other.go()
    loop.go()
    begin, before = time.perf_counter(), loop.rounds
    time.sleep(SLICE)
    rounds, seconds = loop.rounds - before, time.perf_counter() - begin
    for other in (loop, *beside):
        other.rest()
    return rounds / seconds


def share(loop: Loop, beside: Sequence[Loop], fair: float, n_slices: int) -> dict[str, float]:
    """Return `loop`'s throughput alone and beside the others, and its share of the fair part."""
    alone, together = [], []
    for _ in range(n_slices):
        alone.append(rounds_a_second(loop, ()))
        together.append(rounds_a_second(loop, beside))
    ratio = statistics.mean(together) / statistics.mean(alone)
    return {
        "alone": round(statistics.mean(alone), 1),
        "beside": round(statistics.mean(together), 1),
        "fair_part": round(fair, 3),
        "share": round(ratio / fair, 3),
    }


def measure(model: str, n_sequences: int, n_threads: int, n_slices: int) -> dict[str, Any]:
    """Return the shares, by name of the neighbour."""
    first, second = (decoder(model, n_sequences, n_threads) for _ in range(2))
    single = decoder(model, n_sequences, 1)
    square = np.random.default_rng(0).random((400, 400), dtype=np.float32)
    neighbours = {
        "another engine": ([second], n_threads),
        "numpy, 1 thread": ([Loop(lambda: square * square + square)], 1),
        "numpy, 2 threads": ([Loop(lambda: square * square + square) for _ in range(2)], 2),
    }
    try:
        import torch
    except ImportError:
        pass
    else:
        torch.set_num_threads(n_threads)
        matrix = torch.rand(600, 600)
        neighbours["torch"] = ([Loop(lambda: matrix @ matrix)], n_threads)
    results: dict[str, Any] = {}
    for name, (loops, threads) in neighbours.items():
        fair = min(1.0, n_threads / (n_threads + threads))
        results[name] = share(first, loops, fair, n_slices)
        print(f"{name:18} {results[name]['share']:.2f} of a fair share", flush=True)
    fewer, more = [], []
    for _ in range(n_slices):
        fewer.append(rounds_a_second(single, ()))
        more.append(rounds_a_second(first, ()))
    results["1 thread over all"] = round(statistics.mean(fewer) / statistics.mean(more), 3)
    print(f"{'1 thread':18} {results['1 thread over all']:.2f} of the speed of {n_threads}")
    for loop in {first, second, single}.union(*(loops for loops, _ in neighbours.values())):
        loop.end()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=str(tiny_path()))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequences", default="1,8")
    parser.add_argument("--slices", type=int, default=40, help="of each kind, a scenario")
    arguments = parser.parse_args()
    run: dict[str, Any] = {"run": describe_run(), "model": Path(arguments.model).name}
    run["threads"] = arguments.threads
    run["enough"] = ENOUGH
    run["shares"] = {}
    for n_sequences in map(int, arguments.sequences.split(",")):
        print(f"{n_sequences} sequences, {arguments.threads} threads")
        run["shares"][str(n_sequences)] = measure(
            arguments.model, n_sequences, arguments.threads, arguments.slices
        )
    RESULT.write_text(json.dumps(run, indent=2) + "\n")
    print(f"wrote {RESULT}")


if __name__ == "__main__":
    main()
