"""The computing parts of stage d, each in a process of its own, which frees the GPU's memory.

    python -m bench.gpu.parts dense|engine|batches|shared|mixed|transformers full|small CHECKPOINT

Prints a JSON object for each figure as soon as it is known, and {"not_run": why} if a part cannot
run here.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.engines.interface import Arrival, Settings, random_tokens
from bench.engines.latency import latencies, mixed_load, shared_prompt
from bench.gpu.sizes import FULL, SMALL, Sizes

Row = dict[str, Any]

WARM_UP = 2  # prefills before the measured one


def dense(sizes: Sizes, checkpoint: Path) -> Iterator[Row]:
    """Measure torch's product of two square bf16 matrices; needs no checkpoint."""
    try:
        import torch
    except ImportError:
        yield {"not_run": "torch is not installed"}
        return
    if not torch.cuda.is_available():
        yield {"not_run": "torch has no CUDA here"}
        return
    n = sizes.product
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for turn in range(8):
        begin.record()
        for _ in range(10):
            torch.matmul(a, b)
        end.record()
        torch.cuda.synchronize()
        times += [begin.elapsed_time(end) / 1e3 / 10] if turn else []
    yield {"n": n, "torch_tflop_s": 2 * n**3 / statistics.median(times) / 1e12}


def engine(sizes: Sizes, checkpoint: Path) -> Iterator[Row]:
    """Measure the engine alone: a long prompt, and steps of each batch size."""
    from bench.engines.pybatcher_engine import open_engine

    largest = max(sizes.batch_sizes)
    steps = (sizes.rounds + 1) * sizes.steps * len(sizes.batch_sizes)
    length = -(-(sizes.prompt + steps + 1) // sizes.block) * sizes.block
    positions = max(largest * length, sizes.prefill + sizes.block)
    opened = open_engine(checkpoint, sizes.settings(largest, positions))
    yield {"facts": opened.facts()}
    seconds = []
    for turn in range(sizes.rounds + WARM_UP):
        took = opened.prefill(random_tokens(sizes.prefill, seed=turn))
        seconds += [took] if turn >= WARM_UP else []
    speed = sizes.prefill / statistics.median(seconds)
    yield {"kind": "prefill", "tokens": sizes.prefill, "tokens_per_s": speed}
    live, done = 0, 0
    for size in sorted(sizes.batch_sizes):
        opened.extend([random_tokens(sizes.prompt, seed=2 + i) for i in range(live, size)])
        # Sequences of the smaller sizes are longer, so the mean counts.
        new = (size - live) / size
        live, done = size, round(done * (1 - new))
        opened.steps(sizes.steps)
        times = [t for _ in range(sizes.rounds) for t in opened.steps(sizes.steps)]
        done += (sizes.rounds + 1) * sizes.steps
        context = sizes.prompt + done - sizes.rounds * sizes.steps / 2
        speed = size / statistics.median(times)
        yield {"kind": "decode", "batch": size, "context": context, "tokens_per_s": speed}
    opened.clear()
    opened.close()


def serve(
    settings: Settings,
    checkpoint: Path,
    loads: Sequence[tuple[Row, list[Arrival], int]],
) -> Iterator[Row]:
    """Serve each load (its row, arrivals, long prompts among them) with one batcher."""
    from bench.engines.pybatcher_batcher import open_server

    server = open_server(checkpoint, settings)
    server.serve([Arrival(0.0, random_tokens(16, seed=1_000_000), 2)])
    for row, arrivals, n_long in loads:
        server.serve([replace(a, tokens=[255 - t for t in a.tokens], at=0.0) for a in arrivals])
        yield row | latencies(arrivals, server.serve(arrivals), n_long)
    server.close()


def batch(sizes: Sizes, size: int, seed: int = 0) -> list[Arrival]:
    """Return callers that arrive at once with prompts of their own."""
    return [
        Arrival(0.0, random_tokens(sizes.prompt, seed=seed + i), sizes.new) for i in range(size)
    ]


def batches(sizes: Sizes, checkpoint: Path) -> Iterator[Row]:
    """Measure a batcher that is asked by all callers of a batch at once."""
    largest = max(sizes.batch_sizes)
    settings = sizes.settings(largest, 2 * largest * (sizes.prompt + sizes.new + sizes.block))
    loads: list[tuple[Row, list[Arrival], int]] = [
        ({"kind": "batch", "batch": size}, batch(sizes, size), 0) for size in sizes.batch_sizes
    ]
    yield from serve(settings, checkpoint, loads)


def shared(sizes: Sizes, checkpoint: Path) -> Iterator[Row]:
    """Measure callers with a common prompt, who share its KV."""
    load = shared_prompt(
        n_callers=sizes.callers, n_shared=sizes.shared, n_own=sizes.own, n_new=sizes.new, seed=0
    )
    each = sizes.own + sizes.new + sizes.block
    settings = sizes.settings(sizes.callers, 2 * (sizes.shared + sizes.callers * each))
    row = {"kind": "shared", "callers": sizes.callers, "shared_tokens": sizes.shared}
    yield from serve(settings, checkpoint, [(row, load, 0)])


def mixed(sizes: Sizes, checkpoint: Path) -> Iterator[Row]:
    """Measure short streams and a long prompt among them, with `itl_target`."""
    load = mixed_load(
        n_streams=sizes.streams, rate=sizes.rate, n_prompt=sizes.prompt, n_new=sizes.new,
        long_prompt=sizes.prefill, long_at=sizes.long_at, seed=0,
    )  # fmt: skip
    each = sizes.prompt + sizes.new + sizes.block
    n = sizes.prefill + sizes.new + sizes.streams * each
    options = {"itl_target": sizes.itl_target}
    settings = replace(sizes.settings(sizes.streams + 1, 2 * n), options=options)
    row = {"kind": "mixed", "itl_target_s": sizes.itl_target, "long_tokens": sizes.prefill}
    yield from serve(settings, checkpoint, [(row, load, 1)])


def transformers(sizes: Sizes, checkpoint: Path) -> Iterator[Row]:
    """Measure transformers' continuous batching of the same batches."""
    try:
        import torch
        import transformers as library
    except ImportError as error:
        yield {"not_run": f"{error.name} is not installed"}
        return
    if not torch.cuda.is_available():
        yield {"not_run": "torch has no CUDA here"}
        return
    yield from with_transformers(sizes, checkpoint, torch, library, "cuda")


def with_transformers(
    sizes: Sizes, checkpoint: Path, torch: Any, library: Any, device: str
) -> Iterator[Row]:
    """Measure transformers on a device; the largest batch first, by which it sizes its memory."""
    loaded = library.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
    model = loaded.to(device).eval()
    yield {"facts": {"name": "transformers", "version": library.__version__}}
    config = library.GenerationConfig(
        max_new_tokens=sizes.new, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    for size in sorted(sizes.batch_sizes, reverse=True):
        seconds = []
        for turn in range(2):
            inputs = [list(a.tokens) for a in batch(sizes, size, seed=1000 * turn)]
            begin = time.perf_counter()
            done = model.generate_batch(
                inputs, generation_config=config, progress_bar=False, persistent_manager=True
            )
            seconds.append(time.perf_counter() - begin)
            lengths = [len(output.generated_tokens) for output in done.values()]
            if lengths != [sizes.new] * size:
                yield {"error": f"{size} sequences of {sizes.new} tokens asked, got {lengths[:8]}"}
                return
        attention = model.config._attn_implementation
        speed = size * sizes.new / seconds[-1]
        yield {"kind": "batch", "batch": size, "tokens_per_s": speed, "attention": attention}
    model.destroy_cached_continuous_batching_manager()


PARTS: dict[str, Callable[[Sizes, Path], Iterator[Row]]] = {
    "dense": dense,
    "engine": engine,
    "batches": batches,
    "shared": shared,
    "mixed": mixed,
    "transformers": transformers,
}


def main() -> None:
    name, size, checkpoint = sys.argv[1:]
    warnings.simplefilter("ignore", UserWarning)  # the backend warns that the hardware is new to it
    for row in PARTS[name]({"full": FULL, "small": SMALL}[size], Path(checkpoint)):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
