"""Stage d of bench.gpu_check: speed, as a share of limits that are measured in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.convert.make_checkpoint import CHECKPOINTS, make_checkpoint, write_checkpoint
from bench.gpu.outcome import Outcome
from bench.gpu.process import Finished
from bench.gpu.run import EMULATED, Run
from bench.gpu.sizes import FULL, SMALL, Sizes, of_limits

__all__ = ["collect", "limits_of", "speed"]

Row = dict[str, Any]

PARTS = ("engine", "batches", "transformers", "mixed", "shared")  # the most important part first
NOT_OURS = {"dense", "transformers"}  # a failure of these parts is not pybatcher's
# The share of the stage's time for one part, so that a part that hangs leaves time for the others.
LONGEST_PART = 0.45
SHORTEST = 10.0  # seconds; with less time left, no part begins


def speed(run: Run) -> Outcome:
    """Measure limits, engine, batches beside transformers, mixed load, shared prefix."""
    if not run.has("gpu_limits"):
        return Outcome(
            why_not=f"there is no gpu_limits in {run.programs}: `make gpu-kit` builds it"
        )
    sizes = SMALL if run.is_small else FULL
    first = native_limits(run, sizes)
    if isinstance(first, str):
        return Outcome(why_not=first)
    run.progress.say(f"  copies {first['copy_gb_s']:.0f} GB/s, GEMM {first['gemm_tflop_s']:.1f}")
    run.progress.say("  the checkpoint")
    checkpoint = checkpoint_of(run, sizes)
    results = {"dense": part(run, "dense", checkpoint)}
    for name in PARTS:
        run.progress.say(f"  {name}")
        results[name] = part(run, name, checkpoint)
    last = native_limits(run, sizes)
    limits = limits_of([first, *([last] if isinstance(last, dict) else [])], results["dense"])
    return collect(results, sizes, limits, "emulated" if run.device == EMULATED else "cuda")


def native_limits(run: Run, sizes: Sizes) -> Row | str:
    """Return the output of gpu_limits, or the reason why there is none."""
    seconds = "0.01" if run.device == EMULATED else "1.0"
    arguments = [run.device, str(sizes.copy_mib), str(sizes.product), seconds]
    done = run.program([run.programs / "gpu_limits", *arguments], seconds=60)
    if not done.lines:
        return f"gpu_limits {done.describe_end()}"
    return done.lines[-1].get("not_run") or done.lines[-1]


def checkpoint_of(run: Run, sizes: Sizes) -> Path:
    """Return a checkpoint of random weights; make it if it is not there."""
    if sizes.shape == FULL.shape:
        return make_checkpoint(sizes.shape)
    folder = CHECKPOINTS.parent.parent / "build" / "gpu-check" / "small-checkpoint"
    if not (folder / "config.json").exists():
        write_checkpoint(folder, sizes.config)
    return folder


def part(run: Run, name: str, checkpoint: Path) -> list[Row]:
    """Return the rows of a part; one that failed or was cut off ends with an error."""
    if run.seconds_left < SHORTEST:
        return [{"not_run": "no time was left"}]
    size = "small" if run.is_small else "full"
    limit = max(SHORTEST, LONGEST_PART * (run.end - run.begin))
    done = run.python(
        *("-m", "bench.gpu.parts", name, size, str(checkpoint)),
        seconds=limit,
        HF_HUB_OFFLINE="1",  # transformers would look for kernels in the hub
    )
    for row in done.lines:
        if "tokens_per_s" in row:
            run.progress.say(f"    {describe(row)}")
    return rows_of(done)


def rows_of(done: Finished) -> list[Row]:
    """Return the rows of a program, and an error if it failed."""
    ended_well = done.status == 0 and done.lines
    return done.lines if ended_well else [*done.lines, {"error": done.describe_end()}]


def describe(row: Row) -> str:
    """Return a row as a line of text."""
    kind = f"{row['kind']} {row.get('batch') or row.get('tokens') or ''}".strip()
    return f"{kind}: {row['tokens_per_s']:,.1f} tok/s"


def limits_of(measured: Sequence[Row], dense: Sequence[Row]) -> dict[str, Any]:
    """Return the limits of a run: the means of before and after, and the dense rate.

    The dense rate is that of torch's product if it was measured, else that of pybatcher's widest
    kernel, for which a share is less meaningful. On compute capability 9.0 it includes the rates of
    both kernels for many rows: with tiles by cp.async, and by tensor maps.
    """
    torch_rate = next((row["torch_tflop_s"] for row in dense if "torch_tflop_s" in row), None)
    gemm = statistics.fmean(row["gemm_tflop_s"] for row in measured)
    of_hopper = {
        name: statistics.fmean(row[name] for row in measured)
        for name in ("wgmma_tflop_s", "tma_tflop_s")
        if all(name in row for row in measured)
    }
    return {
        "copy_gb_s": statistics.fmean(row["copy_gb_s"] for row in measured),
        "copy_gb_s_before_and_after": [row["copy_gb_s"] for row in measured],
        "dense_tflop_s": gemm if torch_rate is None else torch_rate,
        "dense_by": measured[0]["gemm"] if torch_rate is None else "torch.matmul",
        "gemm_tflop_s": gemm,
        **of_hopper,
    }


def collect(
    results: dict[str, list[Row]], sizes: Sizes, limits: dict[str, Any], device: str
) -> Outcome:
    """Return the figures of all parts, their failures, and the parts that were left out.

    A part that yielded no figure is either left out, with its reason, or has failed.
    """
    failures, left_out = [], {}
    parts: dict[str, Any] = {}
    for name, rows in results.items():
        why_not = [row["not_run"] for row in rows if "not_run" in row]
        if why_not:
            left_out[name] = why_not[0]
        errors = [row["error"] for row in rows if "error" in row]
        if errors and name in NOT_OURS:
            left_out[name] = errors[0]
        else:
            failures += [f"{name}: {error}" for error in errors]
        found = [row for row in rows if "kind" in row]
        if name == "engine":
            found = [of_limits(row, sizes, limits) for row in found]
        facts = next((row["facts"] for row in rows if "facts" in row), None)
        if found:
            parts[name] = {**({"facts": facts} if facts else {}), "rows": found}
        elif name not in NOT_OURS and not why_not and not errors:
            failures.append(f"{name}: no figures")
    ratios = {}
    theirs = {row["batch"]: row for row in parts.get("transformers", {}).get("rows", ())}
    for row in parts.get("batches", {}).get("rows", ()):
        if row["batch"] in theirs:
            ratio = row["tokens_per_s"] / theirs[row["batch"]]["tokens_per_s"]
            ratios[f"batch {row['batch']}"] = ratio
    figures = {
        "device": device,
        "shape": sizes.shape,
        "sizes": {name: getattr(sizes, name) for name in SIZES},
        "limits": limits,
        "parts": parts,
        "ratio_to_transformers": ratios,
    }
    checks = sum(len(found["rows"]) for found in parts.values())
    return Outcome(checks, tuple(failures), left_out, figures)


SIZES = (
    "prefill", "batch_sizes", "prompt", "new", "steps", "rounds", "callers", "shared", "own",
    "streams", "rate", "long_at", "itl_target",
)  # fmt: skip
