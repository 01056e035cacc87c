"""Measure the quality loss of quantised weights, beside llama.cpp's Q8_0 and Q4_0 of the same ones.

    .venv/bin/python -m bench.quality tiny
    .venv/bin/python -m bench.quality llama-3.2-1b

The measure is the Kullback-Leibler divergence, in nats, of the next token's distribution from that
of the f32 weights (computed by pybatcher), over all positions of some sequences. `tiny` is the
model that ships with pybatcher, on texts sampled from it in f32; the others are random weights on
random tokens. KV is f32 unless an option says otherwise, so that only the weights differ.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.machine import describe_run
from bench.common.progress import bar
from bench.common.results import write_result
from bench.convert.make_checkpoint import CHECKPOINTS, make_checkpoint
from bench.convert.shapes import SHAPES
from bench.engines.engine_list import LLAMA_CPP, PYBATCHER, ROOT, MeasuredEngine
from bench.engines.interface import Settings, random_tokens
from bench.engines.worker import Worker
from pybatcher import Batcher

SHIPPED = ROOT / "pybatcher" / "models" / "tiny"
STARTS = ("Once upon a time", "One day", "Write a poem about the moon.", "What is")


@dataclass(frozen=True, slots=True)
class Candidate:
    """Weights of a dtype in an engine; `target` is pybatcher's CPU target, "" the fastest."""

    engine: MeasuredEngine
    dtype: str
    kv_dtype: str
    target: str = ""

    @property
    def name(self) -> str:
        """The name in tables."""
        target = f" on {self.target}" if self.target else ""
        kv = f", KV {self.kv_dtype}" if self.kv_dtype != "f32" else ""
        return f"{self.engine.name} {self.dtype}{target}{kv}"


def divergences(reference: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Return KL(reference || logits) in nats for each row of (n, vocab) f32: (n,) f64."""
    # The rows are converted one by one, because all in double precision might not fit into memory.
    return np.array([_divergence(p, q) for p, q in zip(reference, logits, strict=True)])


def _divergence(p_logits: np.ndarray, q_logits: np.ndarray) -> float:
    log_p, log_q = (_log_softmax(x.astype(np.float64)) for x in (p_logits, q_logits))
    return float(np.sum(np.exp(log_p) * (log_p - log_q)))


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def figures(reference: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """Return mean, median and p99 of the divergences, same_top, and the relative logits difference.

    reference, logits: (n, vocab). same_top: share of rows whose most likely token is equal.
    """
    kl = divergences(reference, logits)
    return {
        "mean": float(kl.mean()),
        "median": float(np.median(kl)),
        "p99": float(np.percentile(kl, 99)),
        "same_top": float(np.mean(reference.argmax(-1) == logits.argmax(-1))),
        "logits_relative_difference": float(
            np.linalg.norm(logits - reference) / np.linalg.norm(reference)
        ),
    }


async def texts(count: int, length: int) -> list[list[int]]:
    """Return token ids sampled from the shipped model in f32 at temperature 1, seeds ascending."""
    async with Batcher(SHIPPED, dtype="f32") as batcher:
        starts = [batcher.runtime.tokenizer.encode(start) for start in STARTS]
        prompts = [list(starts[i % len(starts)]) for i in range(count)]
        drawn = await asyncio.gather(
            *(
                batcher.generate(
                    prompt, max_tokens=length, temperature=1.0, seed=seed, ignore_eos=True
                )
                for seed, prompt in enumerate(prompts)
            )
        )
    return [[*p, *d.token_ids][:length] for p, d in zip(prompts, drawn, strict=True)]


def logits_of(
    candidate: Candidate, checkpoint: Path, sequences: list[list[int]], n_threads: int
) -> np.ndarray:
    """Return the logits of all positions: float32 (n_sequences * length, vocab)."""
    length = len(sequences[0])
    settings = Settings(
        dtype=candidate.dtype,
        n_ctx=-(-length // 256) * 256 * len(sequences),
        n_parallel=len(sequences),
        n_threads=n_threads,
        kv_dtype=candidate.kv_dtype,
    )
    engine = candidate.engine
    environment = {"PYBATCHER_CPU_TARGET": candidate.target} if candidate.target else {}
    worker = Worker(
        *(engine.name, engine.python, engine.stepped_module, checkpoint, settings, environment)
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/logits.npy"
            worker.ask("logits", sequences=sequences, path=path)
            logits = np.load(path)
    finally:
        worker.close()
    return np.asarray(logits.reshape(-1, logits.shape[-1]))


def candidates(dtypes: str, kv_dtypes: str, targets: str) -> Iterator[Candidate]:
    """Yield the candidates whose engine is installed."""
    for kv_dtype in kv_dtypes.split(","):
        for dtype in dtypes.split(","):
            for target in targets.split(","):
                yield Candidate(PYBATCHER, dtype, kv_dtype, target)
            if LLAMA_CPP.is_installed:
                yield Candidate(LLAMA_CPP, dtype, kv_dtype)


def checkpoint_of(model: str) -> Path:
    """Return a writable directory with the checkpoint, for converted files beside it."""
    if model != "tiny":
        return make_checkpoint(model)
    directory = CHECKPOINTS / "tiny"
    if not directory.exists():
        shutil.copytree(SHIPPED, directory)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=["tiny", *sorted(SHAPES)])
    parser.add_argument("--dtypes", default="bf16,int8,int4")
    parser.add_argument("--kv-dtypes", default="f32")
    parser.add_argument("--targets", default="", help="CPU targets of pybatcher")
    parser.add_argument("--sequences", type=int, default=0, help="0: 24 of tiny, 4 of others")
    parser.add_argument("--length", type=int, default=0, help="0: 256 of tiny, 64 of others")
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    run = describe_run()
    checkpoint = checkpoint_of(a.model)
    if a.model == "tiny":
        sequences = asyncio.run(texts(a.sequences or 24, a.length or 256))
    else:
        sequences = [random_tokens(a.length or 64, seed=i) for i in range(a.sequences or 4)]
    todo = list(candidates(a.dtypes, a.kv_dtypes, a.targets))
    rows: list[dict[str, Any]] = []
    with bar(len(todo) + 1) as progress:
        progress.now("pybatcher f32")
        reference = logits_of(Candidate(PYBATCHER, "f32", "f32"), checkpoint, sequences, a.threads)
        progress.advance()
        for candidate in todo:
            progress.now(candidate.name)
            found = figures(reference, logits_of(candidate, checkpoint, sequences, a.threads))
            subject = {"contestant": candidate.engine.name, "dtype": candidate.dtype}
            rows.append({**subject, "kv_dtype": candidate.kv_dtype, "target": candidate.target})
            rows[-1] |= {"kl_nats": found}
            shown = "  ".join(f"{key} {value:9.2e}" for key, value in found.items())
            progress.say(f"{candidate.name:>24}  {shown}")
            progress.advance()
        positions = sum(map(len, sequences))
        result = {"run": run, "model": a.model, "positions": positions, "rows": rows}
        progress.say(f"wrote {write_result(f'quality-{a.model}', result)}")


if __name__ == "__main__":
    main()
