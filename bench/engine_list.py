"""The measured engines, each in its own environment: pybatcher, llama.cpp, OpenVINO GenAI."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT

__all__ = ["ALL", "LLAMA_CPP", "OPENVINO", "PYBATCHER", "ROOT", "MeasuredEngine", "choose"]

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """One engine and where it is installed.

    stepped_module, server_module: modules of bench/engines. make_target: the make target that
    installs it. converter: module of bench/ that converts a checkpoint for it; model: name of the
    converted file beside the checkpoint's. "" where nothing is needed.
    """

    name: str
    python: Path
    stepped_module: str
    server_module: str
    make_target: str = ""
    converter: str = ""
    model: str = ""

    @property
    def is_installed(self) -> bool:
        """True if the engine's environment exists."""
        return self.python.exists()

    def has_model(self, checkpoint: Path, dtype: str) -> bool:
        """True if the checkpoint is already converted for the engine."""
        return not self.model or (checkpoint / self.model.format(dtype=dtype)).exists()

    def convert(self, checkpoint: Path, dtype: str) -> None:
        """Convert the checkpoint if that is not done yet.

        Raises RuntimeError with the converter's output if it fails.
        """
        if self.has_model(checkpoint, dtype):
            return
        command = [str(self.python), "-m", f"bench.{self.converter}", str(checkpoint), dtype]
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
ALL = {engine.name: engine for engine in (PYBATCHER, LLAMA_CPP, OPENVINO)}


def choose(names: str) -> list[MeasuredEngine]:
    """Return the engines named (separated by commas), pybatcher first; "" is all installed ones.

    Ends the program, with the way out, for an unknown engine or one that is not installed.
    """
    if not names:
        return [engine for engine in ALL.values() if engine.is_installed]
    wanted = [name for name in names.split(",") if name != PYBATCHER.name]
    for name in wanted:
        if name not in ALL:
            sys.exit(f"{name!r} is not an engine; there are {', '.join(ALL)}")
        if not ALL[name].is_installed:
            sys.exit(f"{name} is not installed: run `make {ALL[name].make_target}` first")
    return [PYBATCHER, *(ALL[name] for name in ALL if name in wanted)]
