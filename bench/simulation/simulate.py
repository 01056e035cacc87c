"""Compare scheduling policies in virtual time: the real scheduler, with fitted step times.

    .venv/bin/python -m bench.simulate --fit smollm2-135m
    .venv/bin/python -m bench.simulate --load starved --requests 100000 \
        --policy victim_policy=youngest --policy victim_policy=cheapest
    .venv/bin/python -m bench.simulate --load short --requests 1000000
    .venv/bin/python -m bench.simulate --scheduler-cost
    .venv/bin/python -m bench.simulate --replicas 16 --load fleet --requests 5000 --share 0.3
    .venv/bin/python -m bench.simulate --replicas 64 --load fleet --requests 1000000 --share 0.3 \
        --kind coarse

The scheduler and the engine's own KV bookkeeping decide what waits, runs, is shared and evicted;
only the forward pass is replaced, by its time. The times are fitted to a short measurement of a
model on this machine (--fit), kept in bench/results/costs-*.json. All randomness comes from a
seed: two runs differ only in the time that `plan` and `apply` take.

--replicas: many replicas, and policies of routing between them; "prefix" is that of
`pybatcher.ray`, and "prefix 4" has another imbalance. Each replica runs the real scheduler, or
where that takes too long a coarse model of it (--kind coarse, simulation/coarse.py).
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.common.machine import describe_run
from bench.common.options import add_policy_arguments, configs_of, policies_from
from bench.common.progress import bar
from bench.common.results import write_result
from bench.common.slo import Slo, parse_slo
from bench.convert.make_checkpoint import make_checkpoint
from bench.convert.shapes import ALL_SHAPES
from bench.report.draw import draw_result
from bench.serving.loads import LOADS, add_load_arguments, trace_from
from bench.serving.traces import draw
from bench.simulation.compare_fleets import KINDS, compare_fleets
from bench.simulation.costs import as_fields, capacity, errors, fit, read_costs
from bench.simulation.fitting import SEQUENCES, measure_steps, positions_needed
from bench.simulation.run import Simulation
from bench.simulation.scheduler_cost import scheduler_cost
from pybatcher.engine import Engine

COST_SIZES = ((16, 0), (64, 0), (256, 0), (256, 1_000), (256, 10_000), (256, 100_000))
"""Sequences and waiting requests of --scheduler-cost."""


def make_fit(shape: str, dtype: str, n_threads: int) -> None:
    """Measure steps of a model, fit their costs and write them to a file."""
    run, checkpoint = describe_run(), make_checkpoint(shape)
    engine = Engine.load(
        checkpoint,
        dtype=dtype,
        n_threads=n_threads,
        n_ctx=positions_needed(),
        n_parallel=SEQUENCES + 1,
        weights_cache=checkpoint.parent / "packed",
    )
    measured = measure_steps(engine)
    engine.close()
    costs = fit(measured)
    result: dict[str, Any] = {
        "run": run,
        "shape": shape,
        "dtype": dtype,
        "threads": n_threads,
        "costs": as_fields(costs),
        "error": errors(costs, measured),
        "steps": len(measured),
    }
    print(f"wrote {write_result(f'costs-{shape}-{dtype}', result)}")
    for name, seconds in result["costs"].items():
        print(f"{name:>16} {seconds * 1e6:12.4f} us")
    off = result["error"]
    print(f"off by {off['median']:.1%} in the median, {off['max']:.0%} at most")


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print a line per policy."""
    table = Table(box=None)
    table.add_column("policy")
    columns = (
        "TTFT p50", "p99 s", "ITL p50", "p99 ms", "E2E p50", "p99 s", "tok/s", "goodput/s", "met",
        "refused", "preempted", "recomputed", "plan+apply p50", "p99 us",
    )  # fmt: skip
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        ttft, itl, e2e, us = row["ttft_s"], row["itl_s"], row["e2e_s"], row["scheduler"]["all"]
        table.add_row(
            row["policy"],
            f"{ttft['p50']:.3f}", f"{ttft['p99']:.3f}",
            f"{itl['p50'] * 1e3:.1f}", f"{itl['p99'] * 1e3:.1f}",
            f"{e2e['p50']:.2f}", f"{e2e['p99']:.2f}",
            f"{row['tokens_per_s']:.0f}", f"{row['goodput_per_s']:.3f}", f"{row['met']:.1%}",
            str(row["refused"]), str(row["preemptions"]), str(row["recomputed_tokens"]),
            f"{us['p50_us']:.0f}", f"{us['p99_us']:.0f}",
        )  # fmt: skip
    deciding = Table(box=None)
    for name in ("policy", "plan + apply with", "steps", "p50 us", "p99 us", "max us"):
        deciding.add_column(name, justify="left" if name.startswith("pol") else "right")
    for row in rows:
        for kind in ("sequences", "queued"):
            for span, us in row["scheduler"][kind].items():
                shown = (f"{us[name]:.0f}" for name in ("p50_us", "p99_us", "max_us"))
                deciding.add_row(row["policy"], f"{span} {kind}", str(us["steps"]), *shown)
    width = None if sys.stdout.isatty() else 200
    for shown_table in (table, deciding):
        Console(width=width).print(shown_table)


def simulate(a: argparse.Namespace) -> None:
    """Run every policy on one trace; return the result."""
    run, policies = describe_run(), policies_from(a)
    costs, kept = read_costs(a.costs)
    preset = LOADS[a.load]
    rate = a.rate
    if a.trace is not None:
        trace = trace_from(a, 1.0)
    else:
        engine, _ = configs_of(preset.options)
        probe = draw(preset.load, 1000, 1.0, a.seed)
        rate = rate or a.share * capacity(costs, probe, engine.n_parallel, engine.n_ctx)
        trace = trace_from(a, rate)
    gc.freeze()  # otherwise every collection would scan the trace within the measured time
    rows = []
    with bar(len(policies) * len(trace)) as progress:
        for name, options in policies.items():
            progress.now(name)
            begin = time.perf_counter()
            merged = dict(preset.options) | options
            simulation = Simulation(trace, merged, costs, seed=a.seed, on_end=progress.advance)
            simulation.run()
            simulation.book.check_integrity()
            found = simulation.figures(a.slo)
            rows.append({"policy": name, "wall_s": time.perf_counter() - begin} | found)
            progress.say(
                f"{name}: {len(trace)} requests, {found['seconds']:.0f} s of virtual time in "
                f"{rows[-1]['wall_s']:.0f} s"
            )
    show(rows)
    what = a.load if a.trace is None else a.trace.stem
    subject = {"load": what, "costs": {k: kept[k] for k in ("shape", "dtype", "threads", "run")}}
    result = {"run": run, **subject, "rate": rate, "slo": a.slo.limits(), "rows": rows}
    print(f"wrote {write_result(f'simulation-{what}', result)}")
    draw_result("simulation", result)


def simulate_fleet(a: argparse.Namespace) -> None:
    """Run every routing policy on one trace, for the requested kinds of replicas."""
    run = describe_run()
    costs, kept = read_costs(a.costs)
    preset = LOADS[a.load]
    engine, _ = configs_of(preset.options)
    probe = draw(preset.load, 1000, 1.0, a.seed)
    rate = a.rate or a.share * a.replicas * capacity(costs, probe, engine.n_parallel, engine.n_ctx)
    rows = compare_fleets(
        a.load,
        n_requests=a.requests,
        n_replicas=a.replicas,
        rate=rate,
        seed=a.seed,
        costs=costs,
        kinds=KINDS if a.kind == "both" else (a.kind,),
        policies=a.policy or None,
    )
    subject = {"load": a.load, "costs": {k: kept[k] for k in ("shape", "dtype", "threads", "run")}}
    result = {"run": run, **subject, "replicas": a.replicas, "rate": rate, "rows": rows}
    print(f"wrote {write_result(f'fleet-{a.load}-{a.replicas}', result)}")


def show_scheduler_cost(a: argparse.Namespace) -> None:
    """Print the time of plan + apply by sequences in the step and requests in the queue."""
    run, rows = describe_run(), []
    policies = policies_from(a)
    with bar(len(policies) * len(COST_SIZES)) as progress:
        for name, options in policies.items():
            for n_sequences, n_queued in COST_SIZES:
                row = scheduler_cost(n_sequences, n_queued, a.steps, options)
                rows.append({"policy": name} | row)
                progress.say(
                    f"{name:>16}: {n_sequences:4} sequences, {n_queued:6} queued:"
                    f" plan + apply p50 {row['p50_us'] / 1e3:.3f} ms,"
                    f" p99 {row['p99_us'] / 1e3:.3f} ms"
                    f" ({row['admitted']} admitted meanwhile)"
                )
                progress.advance()
    print(f"wrote {write_result('scheduler-cost', {'run': run, 'rows': rows})}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_load_arguments(parser, requests=10_000)
    parser.add_argument("--rate", type=float, help="requests a second; default: see --share")
    parser.add_argument("--share", type=float, default=0.9, help="... of what can be served")
    parser.add_argument("--costs", default="smollm2-135m-int8", help="a fit: SHAPE-DTYPE or a file")
    parser.add_argument("--slo", type=parse_slo, default=Slo(ttft=1.0, itl=0.2))
    add_policy_arguments(parser)
    parser.add_argument("--fit", choices=sorted(ALL_SHAPES), help="measure steps of this shape")
    parser.add_argument("--dtype", default="int8", help="of --fit")
    parser.add_argument("--threads", type=int, default=2, help="of --fit")
    parser.add_argument("--replicas", type=int, help="compare policies of routing to so many")
    parser.add_argument("--kind", choices=(*KINDS, "both"), default="both", help="of --replicas")
    parser.add_argument("--scheduler-cost", action="store_true", help="time of deciding")
    parser.add_argument("--steps", type=int, default=300, help="of --scheduler-cost")
    a = parser.parse_args()
    if a.fit:
        make_fit(a.fit, a.dtype, a.threads)
    elif a.scheduler_cost:
        show_scheduler_cost(a)
    elif a.replicas:
        simulate_fleet(a)
    else:
        simulate(a)


if __name__ == "__main__":
    main()
