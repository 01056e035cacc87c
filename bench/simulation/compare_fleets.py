"""`compare_fleets`: runs routing policies on one trace, each in its own process."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.common.options import configs_of
from bench.serving.loads import LOADS
from bench.serving.traces import draw
from bench.simulation.coarse import CoarseReplica
from bench.simulation.costs import StepCosts
from bench.simulation.fleet import Fleet, ScheduledReplica
from bench.simulation.routing import POLICIES, Routing
from pybatcher.ray.prefix_hashes import BLOCK

__all__ = ["KINDS", "compare_fleets", "run_fleet"]

KINDS = ("scheduler", "coarse")
"""The kinds of replicas: the real scheduler, or the coarse model."""


def compare_fleets(
    load: str,
    *,
    n_requests: int,
    n_replicas: int,
    rate: float,
    seed: int,
    costs: StepCosts,
    kinds: Sequence[str] = KINDS,
    policies: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Run each policy with each kind of replica, and print a table. rate: requests a second."""
    one = partial(
        run_fleet,
        load=load,
        n_requests=n_requests,
        n_replicas=n_replicas,
        rate=rate,
        seed=seed,
        costs=costs,
    )
    asked = [(kind, policy) for kind in kinds for policy in policies or POLICIES]
    rows = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for row in pool.map(one, *zip(*asked, strict=True)):
            rows.append(row)
            print(f"{row['kind']}, {row['policy']}: {row['wall_s']:.0f} s", flush=True)
    show(rows)
    return rows


def run_fleet(
    kind: str,
    policy: str,
    *,
    load: str,
    n_requests: int,
    n_replicas: int,
    rate: float,
    seed: int,
    costs: StepCosts,
) -> dict[str, Any]:
    """Run one policy; return its figures."""
    preset = LOADS[load]
    engine, _ = configs_of(preset.options)
    trace = draw(preset.load, n_requests, rate, seed)
    n_blocks = engine.n_ctx // BLOCK
    make: Any
    if kind == "scheduler":
        make = partial(ScheduledReplica, trace, preset.options, costs, seed)
    else:
        make = partial(CoarseReplica, trace, costs, n_blocks, engine.n_parallel)
    fleet = Fleet(trace, make, n_replicas, Routing(policy, n_replicas, n_blocks), seed=seed)
    begin = time.perf_counter()
    fleet.run()
    wall = time.perf_counter() - begin
    return {"kind": kind, "policy": policy, "wall_s": wall} | fleet.figures()


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print a line per policy and kind of replica."""
    table = Table(box=None)
    for name in ("replicas", "policy"):
        table.add_column(name)
    columns = ("cached", "TTFT p50", "p99 s", "busiest/mean", "busy", "ahead p99", "requests", "/s")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["kind"], row["policy"], f"{row['cached_share']:.1%}",
            f"{row['ttft_s']['p50']:.3f}", f"{row['ttft_s']['p99']:.3f}",
            f"{row['busiest_to_mean']:.3f}", f"{row['busy_share']:.1%}",
            f"{row['ahead_p99']:.1f}", str(row["requests"]),
            f"{row['requests'] / row['wall_s']:.0f}",
        )  # fmt: skip
    Console(width=140).print(table)
