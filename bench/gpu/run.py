"""The environment of a stage of bench.gpu_check: a device, programs and a package."""

from __future__ import annotations

import os
import shutil
import sys
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common.progress import Bar
from bench.engines.engine_list import ROOT
from bench.gpu.process import Finished, run_program

__all__ = ["EMULATED", "ROOT", "Run", "unpack_wheel"]

EMULATED = "emulated"
FIRST_ON_PATH = ROOT / "tests" / "native" / "cuda_emulated" / "sitecustomize.py"

# The program reports versions and the machine. It needs the package on the path.
FACTS = """
import importlib.metadata, importlib.util, json, platform
from pybatcher.engine import Engine
info = Engine.cuda_info()
versions = {"python": platform.python_version()}
distributions = {"pybatcher": "pybatcher-engine"}
for name in ("pybatcher", "numpy", "torch", "transformers", "pytest"):
    if importlib.util.find_spec(name):
        try:
            versions[name] = importlib.metadata.version(distributions.get(name, name))
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "of the checkout"
devices = [[d.name, list(d.compute_capability), d.memory_bytes] for d in info.devices]
print(json.dumps({
    "versions": versions, "toolkit": info.toolkit, "architectures": info.architectures,
    "has_kernels": info.has_kernels, "driver": info.driver_version,
    "driver_problem": info.driver_problem, "devices": devices,
}))
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One stage's run.

    device: "cuda" or "emulated". is_small: the sizes are small enough for an emulator. programs:
        the folder of kernel_bits and gpu_limits. package: the folder that comes first on Python's
        path; None: the environment's package. begin, end: the times of the stage, by
        `time.monotonic`.
    """

    device: str
    is_small: bool
    programs: Path
    package: Path | None
    begin: float
    end: float
    progress: Bar

    @property
    def seconds_left(self) -> float:
        """Seconds until the end of the stage."""
        return max(0.0, self.end - time.monotonic())

    def has(self, program: str) -> bool:
        return (self.programs / program).exists()

    def environ(self, **more: str) -> dict[str, str]:
        """Return the environment of a program that imports pybatcher."""
        env = os.environ | more | {"PYTHONDONTWRITEBYTECODE": ""}
        if self.package is not None:
            env["PYTHONPATH"] = str(self.package)
        return env

    def python(self, *arguments: str, seconds: float | None = None, **more: str) -> Finished:
        """Run Python with the package in the checkout's folder."""
        return self.program([sys.executable, *arguments], seconds=seconds, **more)

    def program(
        self, command: Sequence[str | Path], seconds: float | None = None, **more: str
    ) -> Finished:
        """Run a program within the stage's time; more: variables of its environment."""
        limit = self.seconds_left if seconds is None else min(seconds, self.seconds_left)
        return run_program(command, limit, env=self.environ(**more), cwd=ROOT)

    def facts(self) -> dict[str, Any]:
        """Return versions, toolkit, driver and GPUs, or {"problem": why they are unknown}."""
        done = self.python("-c", FACTS)
        found = done.lines[-1] if done.lines else {"problem": f"pybatcher {done.describe_end()}"}
        smi = shutil.which("nvidia-smi")
        if self.device == "cuda" and smi is not None:
            fields = "name,driver_version,clocks.max.sm,power.limit"
            asked = self.program([smi, f"--query-gpu={fields}", "--format=csv,noheader"])
            found["nvidia_smi"] = asked.output.strip()
        return found

    def why_no_gpu(self) -> str:
        """Return the reason why the package cannot compute on a GPU here; "" if it can."""
        facts = self.facts()
        if "problem" in facts:
            return str(facts["problem"])
        if not facts["has_kernels"]:
            return "this build of pybatcher has no CUDA kernels: build it with PYBATCHER_CUDA=ON"
        return str(facts["driver_problem"])


def unpack_wheel(wheel: Path, folder: Path) -> Path:
    """Unpack a wheel so that its package comes before the checkout's; return its folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    shutil.copy(FIRST_ON_PATH, folder)
    return folder
