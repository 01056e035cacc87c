"""Stages a to c of bench.gpu_check: bits, tests, sanitizers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.gpu.bits import Bits, compare, mma_model, read_bits
from bench.gpu.outcome import Outcome
from bench.gpu.process import Finished
from bench.gpu.run import EMULATED, Run

__all__ = ["bits", "read_junit", "read_sanitizer", "sanitizers", "tests"]

PROGRAMS_MISSING = "there is no {} in {}: `make gpu-kit` builds it"

# These emulated tests exercise the stage itself in seconds.
SMALL_TESTS = "test_it_says_what_it_is or (drafts_change and llama)"
OWN_TESTS = "tests/emulated/test_gpu_check.py"  # these tests run this stage
NOT_CHECKED = "ignore:device 'cuda' has been checked on:UserWarning"

TOOLS = ("memcheck", "racecheck")
SANITIZER_PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/cuda/bin")
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")
NOT_RACECHECKED = "tma_attention"  # a part of kernel_bits
WHY_NOT_RACECHECKED = (
    "racecheck does not see that a lane's arrival at an mbarrier, behind __syncwarp, is one of its "
    "whole warp (with an arrival of each lane it has found nothing)"
)
FOUND_ERRORS = 99  # the exit status of a program in which a sanitizer found something


def bits(run: Run) -> Outcome:
    """Run every kernel on fixed inputs on the device and on the emulator; compare the bits."""
    if not run.has("kernel_bits"):
        return Outcome(why_not=PROGRAMS_MISSING.format("kernel_bits", run.programs))
    program = run.programs / "kernel_bits"
    size = ["small"] if run.is_small else []
    if run.device == EMULATED:
        # The device is the same emulator, whose threads run in another order.
        model = "hopper"
        gpu = [program, EMULATED, "mma=hopper", "seed=1", *size]
    else:
        asked = run.program([program, "cuda", "small"], seconds=120)
        why_not = [line["not_run"] for line in asked.lines if set(line) == {"not_run"}]
        if why_not:
            return Outcome(why_not=why_not[0])
        found = next((line for line in asked.lines if "device" in line), None)
        if found is None:
            return Outcome(failures=(f"kernel_bits {asked.describe_end()}",))
        model = mma_model(found["capability"]) or ""
        gpu = [program, "cuda", *size]
    emulator = [program, EMULATED, f"mma={model or 'sequential'}", *size]
    run.progress.say(f"  kernels on {run.device}, and on the emulator ({model or 'no model'})")
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(run.program, (gpu, emulator)))
    found_bits = [with_end(read_bits(done.lines), done) for done in ended]
    return compare(*found_bits, has_model=model != "")


def with_end(found: Bits, done: Finished) -> Bits:
    """Add the end of the program to the errors, unless it succeeded."""
    if done.status == 0:
        return found
    return Bits(
        found.device, found.hashes, found.groups, found.with_mma, found.left_out,
        (*found.errors, f"kernel_bits {done.describe_end()}"), found.not_launched,
        found.is_complete,
    )  # fmt: skip


def tests(run: Run) -> Outcome:
    """Run the tests of the emulated GPU on the device."""
    if importlib.util.find_spec("pytest") is None:
        return Outcome(why_not="pytest is not installed")
    if run.device != EMULATED and (why_not := run.why_no_gpu()):
        return Outcome(why_not=why_not)
    left_out = {}
    selection = SMALL_TESTS if run.is_small else ""
    if importlib.util.find_spec("transformers") is None and not run.is_small:
        selection = "not transformers"
        left_out["tests beside transformers"] = "transformers is not installed"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = ["-m", "pytest", "tests/emulated", f"--ignore={OWN_TESTS}", "-q"]
        command += ["-p", "no:cacheprovider", f"--junitxml={report}", "-W", NOT_CHECKED]
        command += ["-p", "no:benchmark"]  # the plugin warns about xdist, and warnings are errors
        command += ["-k", selection] if selection else []
        if importlib.util.find_spec("xdist") is not None:
            workers = 1 if run.is_small else min(8, os.cpu_count() or 1)
            command += ["-p", "xdist", "-n", str(workers)] if workers > 1 else ["-p", "no:xdist"]
        done = run.python(
            *command,
            PYBATCHER_TEST_DEVICE="cuda",
            PYBATCHER_TEST_GPU="emulated" if run.device == EMULATED else "real",
        )
        text = report.read_text() if report.exists() else ""
    if not text:
        return Outcome(failures=(f"pytest {done.describe_end()}",), left_out=left_out)
    outcome = read_junit(text, left_out)
    if done.status != 0 and not outcome.failures:
        return Outcome(outcome.checks, (f"pytest {done.describe_end()}",), outcome.left_out)
    return outcome


def read_junit(text: str, left_out: dict[str, str]) -> Outcome:
    """Return the outcome of a pytest run from its report in JUnit's XML."""
    passed, failures, left_out = 0, [], dict(left_out)
    for case in ElementTree.fromstring(text).iter("testcase"):
        name = case.get("name", "")
        results = {child.tag: child.get("message") or "" for child in case}
        broken = [tag for tag in ("failure", "error") if tag in results]
        if broken:
            failures.append(f"{name}: {results[broken[0]][:500]}")
        elif "skipped" in results:
            left_out[name] = results["skipped"]
        else:
            passed += 1
    return Outcome(passed, tuple(failures), left_out, {"passed": passed, "failed": len(failures)})


def sanitizers(run: Run) -> Outcome:
    """Run kernels and an engine under compute-sanitizer."""
    if run.device == EMULATED:
        return Outcome(
            why_not="compute-sanitizer needs a GPU; `make sanitize-kernels` is the CPU's"
        )
    path = os.pathsep.join((os.environ.get("PATH", ""), *SANITIZER_PLACES))
    sanitizer = shutil.which("compute-sanitizer", path=path)
    if sanitizer is None:
        return Outcome(why_not="there is no compute-sanitizer, which comes with the CUDA toolkit")
    if why_not := run.why_no_gpu():
        return Outcome(why_not=why_not)
    programs: dict[str, list[str | Path]] = {
        "kernels": [run.programs / "kernel_bits", "cuda", "small"],
        "engine": [sys.executable, "-W", NOT_CHECKED, "-m", "bench.gpu.walk"],
    }
    left_out = {}
    if not run.has("kernel_bits"):
        left_out["kernels"] = PROGRAMS_MISSING.format("kernel_bits", run.programs)
        del programs["kernels"]
    checks, failures, figures = 0, [], {}
    jobs = [(tool, name) for name in programs for tool in TOOLS]
    for i, (tool, name) in enumerate(jobs):
        run.progress.say(f"  {tool} of {name}")
        options = ["--tool", tool, "--error-exitcode", str(FOUND_ERRORS), "--print-limit", "20"]
        command = [sanitizer, *options, "--target-processes", "all", *programs[name]]
        if (tool, name) == ("racecheck", "kernels"):
            command.append(f"except={NOT_RACECHECKED}")
            left_out[f"racecheck of {NOT_RACECHECKED}"] = WHY_NOT_RACECHECKED
        done = run.program(command, seconds=run.seconds_left / (len(jobs) - i))
        figures[f"{tool} of {name}"] = {"seconds": done.seconds}
        problem = read_sanitizer(done)
        checks += 1
        if problem:
            failures.append(f"{tool} of {name}: {problem}")
    return Outcome(checks, tuple(failures), left_out, figures)


def read_sanitizer(done: Finished) -> str:
    """Return the findings of compute-sanitizer, or the end of its program; "" if all is well."""
    text = done.output + done.errors
    summaries = [int(first or second) for first, second in SUMMARY.findall(text)]
    if done.status is None or not summaries:
        return f"no summary, {done.describe_end()}"
    if any(summaries):
        reports = [line for line in text.splitlines() if line.startswith("=========")]
        return f"{sum(summaries)} errors: " + " | ".join(line[10:].strip() for line in reports[:6])
    return "" if done.status == 0 else done.describe_end()
