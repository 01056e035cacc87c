"""Measures the kernels of a layer on a GPU with torch's profiler; needs torch with CUDA.

    python -m bench.gpu.layers CHECKPOINT bf16 p8192 d1 d64 d32@4096

pN is a prompt of N tokens. dN is a decode step of N sequences of 128 tokens, and dN@M of M tokens.
Each task prints a JSON object with the seconds of the whole step, the microseconds of a layer, and
the microseconds of its kernels in order. The times are medians of all layers except the last. Four
layers of a model are enough.
"""

from __future__ import annotations

import json
import statistics
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.engines.interface import SteppedEngine, random_tokens
from bench.gpu.sizes import FULL

PROMPT = 128  # tokens of a sequence, if a task does not name a number
FIRST_OF_LAYER = "rms_norm"  # a layer has two of these
AFTER_LAST = "find_likeliest"


@dataclass(frozen=True, slots=True)
class Task:
    """A measured task. n: the tokens of a prompt, or the sequences of a step with `length` tokens
    each.
    """

    text: str
    is_prompt: bool
    n: int
    length: int

    @classmethod
    def parse(cls, text: str) -> Task:
        """Parse "p8192", "d64" or "d32@4096"."""
        n, _, length = text[1:].partition("@")
        return cls(text, text[0] == "p", int(n), int(length) if length else PROMPT)

    @property
    def positions(self) -> int:
        """The KV positions that the task needs, with a reserve."""
        return self.n + 64 if self.is_prompt else self.n * (self.length + 128)


Launched = tuple[float, float, str]  # begin and end in microseconds, and the kernel


def launches_of(run: Callable[[], object]) -> list[Launched]:
    """Return the kernels that the GPU ran during `run`, in order."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        torch.cuda.synchronize()
        run()
        torch.cuda.synchronize()
    return sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events()
        if str(event.device_type).endswith("CUDA")
    )


def layers_of(launches: list[Launched]) -> list[list[Launched]]:
    """Return the launches of each complete layer that has the most frequent sequence of kernels."""
    begins = [i for i, (_, _, name) in enumerate(launches) if name.startswith(FIRST_OF_LAYER)]
    found = [launches[a:b] for a, b in zip(begins, begins[2:], strict=False)]
    found = [
        layer
        for layer in found
        if any(name.startswith("attention") for _, _, name in layer[:5])
        and all(name != AFTER_LAST for _, _, name in layer)
    ]
    kinds = [tuple(name for _, _, name in layer) for layer in found]
    if not kinds:
        raise ValueError("no layer was found among the launches: is it a model with RMS norms?")
    most = statistics.mode(kinds)
    return [layer for layer, kind in zip(found, kinds, strict=True) if kind == most]


def describe(task: Task, seconds: float, layers: list[list[Launched]]) -> dict[str, Any]:
    """Return the row of a task."""
    names = [name for _, _, name in layers[0]]
    median = [
        statistics.median(layer[i][1] - layer[i][0] for layer in layers) for i in range(len(names))
    ]
    whole = statistics.median(layer[-1][1] - layer[0][0] for layer in layers)
    return {
        "task": task.text,
        "seconds": seconds,
        "layer_us": whole,
        "kernels_us": [[name, us] for name, us in zip(names, median, strict=True)],
    }


def measure(engine: SteppedEngine, task: Task) -> dict[str, Any]:
    """Measure a task, first without the profiler."""
    if task.is_prompt:
        seconds = min(engine.prefill(random_tokens(task.n, seed=turn)) for turn in range(4))
        launches = launches_of(lambda: engine.prefill(random_tokens(task.n, seed=9)))
    else:
        engine.extend([random_tokens(task.length, seed=2 + i) for i in range(task.n)])
        engine.steps(6)
        seconds = statistics.median(engine.steps(12))
        launches = launches_of(lambda: engine.steps(4))
        engine.clear()
    return describe(task, seconds, layers_of(launches))


def main() -> None:
    import torch

    from bench.engines.pybatcher_engine import open_engine

    checkpoint, dtype, *texts = sys.argv[1:]
    tasks = [Task.parse(text) for text in texts]
    warnings.simplefilter("ignore", UserWarning)
    torch.zeros(1, device="cuda")  # the profiler only sees contexts that torch has created
    most = max([task.n for task in tasks if not task.is_prompt], default=1)
    longest = max([task.n for task in tasks if task.is_prompt], default=2048)
    sizes = replace(FULL, batch_sizes=(most,), prefill=longest)
    settings = sizes.settings(most, max(task.positions for task in tasks))
    engine = open_engine(Path(checkpoint), replace(settings, dtype=dtype))
    for task in tasks:
        print(json.dumps({"dtype": dtype} | measure(engine, task)), flush=True)
    engine.close()


if __name__ == "__main__":
    main()
