"""What the tests of the engine share: a small engine, token ids, plans, a look at its state."""

from __future__ import annotations

from typing import Any

from pybatcher import errors
from pybatcher.engine import Engine
from pybatcher.scheduling.plan import StepEntry, StepPlan

VOCAB = 384
OPTIONS: dict[str, Any] = {"n_ctx": 250, "n_parallel": 4, "n_ubatch": 16, "block_size": 16}


def state(engine: Engine) -> tuple[object, ...]:
    """Everything that a failed call must leave as it was."""
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
