"""The measured engines, each in its own environment: pybatcher, llama.cpp, OpenVINO GenAI, vLLM."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from subprocess import PIPE, STDOUT

from bench.common.isa import NATIVE, Isa

__all__ = ["ALL", "LLAMA_CPP", "OPENVINO", "PYBATCHER", "ROOT", "VLLM", "MeasuredEngine", "choose"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """One engine and where it is installed.

    stepped_module, server_module: modules of bench/engines. make_target: the make target that
    installs it. converter: module of bench/convert that converts a checkpoint for it; model: name
    of the converted file beside the checkpoint's. "" where nothing is needed. dtypes: the only ones
    that it is measured in; () for all. is_compiled: made for one instruction set, each in an
    environment of its own. environment: variables of its process.
    """

    name: str
    python: Path
    stepped_module: str
    server_module: str
    make_target: str = ""
    converter: str = ""
    model: str = ""
    dtypes: tuple[str, ...] = ()
    is_compiled: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_installed(self) -> bool:
        """True if the engine's environment exists."""
        return self.python.exists()

    def takes(self, dtype: str) -> bool:
        """True if it is measured in this dtype."""
        return not self.dtypes or dtype in self.dtypes

    def held_to(self, isa: Isa) -> MeasuredEngine:
        """Return the engine as it is installed for, and runs with, an instruction set."""
        held = replace(self, environment=isa.environment)
        if not self.is_compiled or isa == NATIVE:
            return held
        folder = self.python.parents[1]
        python = folder.with_name(f"{folder.name}-{isa.name}") / self.python.relative_to(folder)
        return replace(held, python=python, make_target=f"{self.make_target} ISA={isa.name}")

    def has_model(self, checkpoint: Path, dtype: str) -> bool:
        """True if the checkpoint is already converted for the engine."""
        return not self.model or (checkpoint / self.model.format(dtype=dtype)).exists()

    def convert(self, checkpoint: Path, dtype: str) -> None:
        """Convert the checkpoint if that is not done yet.

        Raises RuntimeError with the converter's output if it fails.
        """
        if self.has_model(checkpoint, dtype):
            return
        command = [
            str(self.python),
            "-m",
            f"bench.convert.{self.converter}",
            str(checkpoint),
            dtype,
        ]
        done = subprocess.run(command, stdout=PIPE, stderr=STDOUT, text=True, cwd=ROOT, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}")


PYBATCHER = MeasuredEngine(
    "pybatcher", Path(sys.executable), "pybatcher_engine", "pybatcher_batcher"
)
LLAMA_CPP = MeasuredEngine(
    name="llama.cpp",
    python=ROOT / ".venv-rivals/bin/python",
    stepped_module="llama_cpp",
    server_module="llama_cpp_server",
    make_target="rival-llamacpp",
    converter="to_gguf",
    model="model-{dtype}.gguf",
    is_compiled=True,
)
OPENVINO = MeasuredEngine(
    name="openvino",
    python=ROOT / ".venv-openvino/bin/python",
    stepped_module="openvino_genai",
    server_module="openvino_server",
    make_target="rival-openvino",
    converter="to_openvino",
    model="openvino-{dtype}",
)
VLLM = MeasuredEngine(
    name="vllm",
    python=ROOT / ".venv-vllm/bin/python",
    stepped_module="vllm_cpu",
    server_module="vllm_server",
    make_target="rival-vllm",
    dtypes=("f32", "bf16"),
)
ALL = {engine.name: engine for engine in (PYBATCHER, LLAMA_CPP, OPENVINO, VLLM)}


def choose(names: str, isa: Isa = NATIVE) -> list[MeasuredEngine]:
    """Return the named engines (separated by commas), pybatcher first. "" means all installed ones.

    isa: the instruction set that each engine is restricted to.

    Ends the program, with advice, for an unknown engine or one that is not installed.
    """
    held = {name: engine.held_to(isa) for name, engine in ALL.items()}
    if not names:
        return [engine for engine in held.values() if engine.is_installed]
    wanted = {PYBATCHER.name, *names.split(",")}
    for name in sorted(wanted):
        if name not in held:
            sys.exit(f"{name!r} is not an engine; there are {', '.join(held)}")
        if not held[name].is_installed:
            sys.exit(f"{name} is not installed: run `make {held[name].make_target}` first")
    return [engine for name, engine in held.items() if name in wanted]
