"""Check the CUDA backend on a GPU, in four stages of less than eight minutes each.

    make gpu-kit                                 # on a machine with nvcc: a wheel and two programs
    python -m bench.gpu_check --stage all        # on the machine with the GPU, without network
    make emulated && python -m bench.gpu_check --stage a,b,d --device emulated   # tries the script

a  bits: mma.sync = wgmma = the model of them; every kernel has the emulator's bits.
b  tests: every test of the emulated GPU, on the device.
c  sanitizers: memcheck and racecheck of the kernels and of an engine.
d  speed: decode and prefill of the Llama-3.1-8B shape as parts of the copy bandwidth and of the
   dense rate, transformers' continuous batching beside them, mixed load, shared prefix.

Each writes gpu-STAGE-GPU.json: of a GPU into bench/results/, of the emulator into build/gpu-check/.
The exit status is 1 where a check failed, 2 where a stage could not be run, which is never a pass.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.common.machine import describe_run
from bench.common.progress import Bar, bar
from bench.common.results import RESULTS, write_result
from bench.gpu.outcome import Outcome, exit_status
from bench.gpu.run import EMULATED, ROOT, Run, unpack_wheel
from bench.gpu.speed import speed
from bench.gpu.stages import bits, sanitizers, tests

SECONDS = 470.0  # seconds of a stage; with its beginning and end, less than eight minutes
KIT = ROOT / "build" / "gpu-kit"
OF_EMULATOR = ROOT / "build" / "gpu-check"

STAGES: dict[str, tuple[str, Callable[[Run], Outcome]]] = {
    "a": ("bits", bits),
    "b": ("tests", tests),
    "c": ("sanitizers", sanitizers),
    "d": ("speed", speed),
}


def stages_of(text: str) -> list[str]:
    """Parse "all" or "a,b"; ends the program for other letters."""
    wanted = list(STAGES) if text == "all" else text.split(",")
    unknown = [letter for letter in wanted if letter not in STAGES]
    if unknown:
        sys.exit(f"--stage: {','.join(unknown)} is not one of {', '.join(STAGES)}, all")
    return wanted


def name_of(device: str, facts: dict[str, Any]) -> str:
    """Return the GPU's name as part of a file's name; the emulator is never called a GPU."""
    if device == EMULATED:
        return EMULATED
    devices = facts.get("devices") or [["no-gpu"]]
    return re.sub(r"[^a-z0-9]+", "-", str(devices[0][0]).lower()).strip("-")


def run_stage(letter: str, run: Run) -> Outcome:
    """Run a stage. An exception counts as its failure."""
    try:
        return STAGES[letter][1](run)
    except Exception as error:
        return Outcome(failures=(f"{type(error).__name__}: {error}",))


def describe(letter: str, result: dict[str, Any]) -> list[str]:
    """Return the outcome of a stage as lines of text."""
    title = f"{letter} {STAGES[letter][0]}: {result['verdict']}"
    lines = [f"{title}, {result['checks']} checks in {result['seconds']:.0f} s"]
    if "why_not" in result:
        lines = [f"{title}: {result['why_not']}"]
    lines += [f"  FAILED {failure}" for failure in result["failures"][:20]]
    lines += [f"  not run: {name}: {why}" for name, why in list(result["left_out"].items())[:20]]
    return lines


def package_for(device: str, kit: Path, progress: Bar) -> Path | None:
    """Return the folder of the package to check, None for the environment's own."""
    if device == EMULATED:
        return ROOT / "build" / "emulated"
    wheels = sorted(kit.glob("*.whl"))
    if not wheels:
        progress.say(f"no wheel in {kit}: taking the environment's pybatcher")
        return None
    return unpack_wheel(wheels[-1], OF_EMULATOR / "package")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", default="all", help="a, b, c, d, several (a,b), or all")
    parser.add_argument("--device", choices=("cuda", EMULATED), default="cuda")
    parser.add_argument(
        "--small", action="store_true", help="sizes for an emulator, which has them"
    )
    parser.add_argument("--kit", type=Path, help=f"what `make gpu-kit` made; default: {KIT}")
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each stage at most")
    a = parser.parse_args()
    letters, is_emulated = stages_of(a.stage), a.device == EMULATED
    kit = a.kit or (ROOT / "build" / "native" if is_emulated else KIT)
    folder = a.out or (OF_EMULATOR if is_emulated else RESULTS)
    verdicts = []
    with bar(len(letters)) as progress:
        package = package_for(a.device, kit, progress)
        for letter in letters:
            progress.now(f"{letter} {STAGES[letter][0]}")
            progress.say(f"{letter} {STAGES[letter][0]}")
            begin = time.monotonic()
            machine = describe_run()
            if (kit / "commit").exists():  # the wheel's commit, because there may be no git here
                machine["kit_commit"] = (kit / "commit").read_text().strip()
            run = Run(
                device=a.device,
                is_small=a.small or is_emulated,
                programs=kit,
                package=package,
                begin=begin,
                end=begin + a.seconds,
                progress=progress,
            )
            facts = run.facts()
            outcome = run_stage(letter, run).as_json()
            result = {
                "stage": letter,
                "name": STAGES[letter][0],
                "device": "cuda (emulated)" if is_emulated else "cuda",
                "small": run.is_small,
                "seconds": time.monotonic() - begin,
                **outcome,
                "gpu": facts,
                "run": machine,
            }
            verdicts.append(result["verdict"])
            for line in describe(letter, result):
                progress.say(line)
            file = f"gpu-{result['name']}-{name_of(a.device, facts)}"
            progress.say(f"wrote {write_result(file, result, folder)}")
            progress.advance()
    sys.exit(exit_status(verdicts))


if __name__ == "__main__":
    main()
