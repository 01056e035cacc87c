"""Helpers of the engine's tests: CPU targets, a small engine, token ids, plans, its state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pybatcher import errors
from pybatcher.engine import Engine
from pybatcher.scheduling.plan import StepEntry, StepPlan

VOCAB = 384
OPTIONS: dict[str, Any] = {"n_ctx": 250, "n_parallel": 4, "n_ubatch": 16, "block_size": 16}


def _targets() -> list[str]:
    """Return the CPU targets that this machine can run, by the flags the kernel reports."""
    flags = set(Path("/proc/cpuinfo").read_text().split())
    avx2 = {"avx2", "fma", "f16c"}
    avx512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
    needs = {
        "avx2": avx2,
        "avx_vnni": avx2 | {"avx_vnni"},
        "avx512": avx512,
        "avx512_vnni": avx512 | {"avx512_vnni"},
        "avx512_bf16": (bf16 := avx512 | {"avx512_vnni", "avx512_bf16"}),
        "avx512_amx": bf16 | {"amx_tile", "amx_bf16", "amx_int8"},
        "neon": {"asimddp"},
        "neon_i8mm": {"asimddp", "i8mm", "bf16"},
    }
    return ["scalar", *(target for target, needed in needs.items() if needed <= flags)]


TARGETS = _targets()  # the best one last
# They attend by products of bf16 pairs: queries and probabilities are rounded, too.
ATTENDING_IN_BF16 = {"avx512_bf16", "avx512_amx"}


def state(engine: Engine) -> tuple[object, ...]:
    """Return everything that a failed call must leave unchanged."""
    lengths = []
    for seq_id in range(engine.n_parallel):
        try:
            lengths.append(engine.seq_length(seq_id))
        except errors.InvalidRequestError:
            lengths.append(-1)
    engine.check_integrity()
    return (
        lengths,
        engine.kv_free_blocks,
        engine.kv_cached_blocks,
        engine.used_sequences,
        engine.statistics(),
    )


def ids(n: int, salt: int = 0) -> list[int]:
    return [(i * 37 + salt * 101 + 5) % VOCAB for i in range(n)]


def plan(*entries: tuple[int, list[int], bool]) -> StepPlan:
    made = tuple(StepEntry(seq_id, tuple(tokens), sample) for seq_id, tokens, sample in entries)
    return StepPlan(made, decode_rows=0, prefill_rows=sum(len(e.tokens) for e in made))


def some_logits(path: Path) -> NDArray[np.float32]:
    """Return the f32 logits of a model after a prompt and three tokens more: (4, vocabulary)."""
    engine = Engine.load(path, dtype="f32", n_ctx=256, n_parallel=2)
    seq_id = engine.seq_new()
    rows = [engine.prefill_chunk(seq_id, list(range(5, 60)), logits=True)]
    rows += [engine.prefill_chunk(seq_id, [token], logits=True) for token in (9, 300, 12)]
    engine.close()
    return np.array(rows)
