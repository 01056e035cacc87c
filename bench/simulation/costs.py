"""`StepCosts`: the time of a step as a function of its work."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.common.results import RESULTS
from bench.serving.traces import TraceRequest

__all__ = ["StepCosts", "Work", "capacity", "fit", "read_costs"]


class Work(NamedTuple):
    """Rows of a step, and the positions that they attend to, summed over the rows."""

    decode_rows: int
    prefill_rows: int
    decode_context: int
    prefill_context: int


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of an empty step, and of each unit of `Work`."""

    step: float
    decode_row: float
    prefill_row: float
    decode_context: float
    prefill_context: float

    def seconds(self, work: Work) -> float:
        """Return the seconds of a step with this work."""
        return (
            self.step
            + self.decode_row * work.decode_rows
            + self.prefill_row * work.prefill_rows
            + self.decode_context * work.decode_context
            + self.prefill_context * work.prefill_context
        )


def fit(measured: Sequence[tuple[Work, float]]) -> StepCosts:
    """Fit the costs by least squares of the relative error; no cost is negative."""
    seconds = np.array([time for _, time in measured])
    table = np.array([(1, *work) for work, _ in measured], dtype=float) / seconds[:, None]
    used = list(range(table.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(table[:, used], np.ones(len(seconds)), rcond=None)
        if (found >= 0.0).all():
            break
        del used[int(found.argmin())]
    costs = np.zeros(table.shape[1])
    costs[used] = found
    return StepCosts(*costs.tolist())


def errors(costs: StepCosts, measured: Sequence[tuple[Work, float]]) -> dict[str, float]:
    """Return the relative errors of the fit."""
    off = [abs(costs.seconds(work) / seconds - 1.0) for work, seconds in measured]
    return {"median": float(np.median(off)), "max": max(off)}


def capacity(costs: StepCosts, trace: Sequence[TraceRequest], n_parallel: int, n_ctx: int) -> float:
    """Estimate the requests a second that can be served, with as many at once as fit into memory.

    Counts shared prefixes as computed.
    """
    prompts = np.array([r.prompt_tokens for r in trace], dtype=float)
    own = prompts - np.array([r.shared_tokens for r in trace])
    new = np.array([r.new_tokens for r in trace], dtype=float)
    at_once = max(1.0, min(n_parallel, n_ctx / float(np.mean(own + new))))
    prefill = own * costs.prefill_row + own * (prompts - own / 2) * costs.prefill_context
    context = prompts + new / 2
    decode = new * (costs.step / at_once + costs.decode_row + context * costs.decode_context)
    return 1.0 / float(np.mean(prefill + decode))


def read_costs(name: str, folder: Path = RESULTS) -> tuple[StepCosts, dict[str, Any]]:
    """Return a stored fit, by SHAPE-DTYPE or file name, and the file's other fields."""
    path = Path(name) if name.endswith(".json") else folder / f"costs-{name}.json"
    if not path.exists():
        there = [file.stem.removeprefix("costs-") for file in sorted(folder.glob("costs-*.json"))]
        sys.exit(
            f"{path} is not there; fits that are: {', '.join(there) or 'none'}; make one with --fit"
        )
    kept = json.loads(path.read_text())
    return StepCosts(**kept["costs"]), kept


def as_fields(costs: StepCosts) -> dict[str, float]:
    """Return the costs as JSON fields."""
    return dict(zip(StepCosts.__slots__, astuple(costs), strict=True))
