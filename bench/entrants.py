"""Who is measured: pybatcher, and the rivals that are installed, each in its own environment."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT

__all__ = ["ALL", "LLAMA_CPP", "OPENVINO", "PYBATCHER", "ROOT", "Entrant", "choose"]

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Entrant:
    """One engine. `contestant` and `server` are modules of bench/contestants.

    make_target: what installs it. converter, model: the module of bench/ that converts a
    checkpoint for it, and what it then puts beside the checkpoint's files. "": nothing is needed.
    """

    name: str
    python: Path
    contestant: str
    server: str
    make_target: str = ""
    converter: str = ""
    model: str = ""

    @property
    def is_installed(self) -> bool:
        """Whether its environment is there."""
        return self.python.exists()

    def has_model(self, checkpoint: Path, dtype: str) -> bool:
        """Whether it could load the checkpoint at once."""
        return not self.model or (checkpoint / self.model.format(dtype=dtype)).exists()

    def convert(self, checkpoint: Path, dtype: str) -> None:
        """Make what it loads, if it is not there; RuntimeError with what was said otherwise."""
        if self.has_model(checkpoint, dtype):
            return
        command = [str(self.python), "-m", f"bench.{self.converter}", str(checkpoint), dtype]
        done = subprocess.run(command, stdout=PIPE, stderr=STDOUT, text=True, cwd=ROOT, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}")


PYBATCHER = Entrant("pybatcher", Path(sys.executable), "pybatcher_engine", "pybatcher_batcher")
LLAMA_CPP = Entrant(
    name="llama.cpp",
    python=ROOT / ".venv-rivals/bin/python",
    contestant="llama_cpp",
    server="llama_cpp_server",
    make_target="rival-llamacpp",
    converter="to_gguf",
    model="model-{dtype}.gguf",
)
OPENVINO = Entrant(
    name="openvino",
    python=ROOT / ".venv-openvino/bin/python",
    contestant="openvino_genai",
    server="openvino_server",
    make_target="rival-openvino",
    converter="to_openvino",
    model="openvino-{dtype}",
)
ALL = {entrant.name: entrant for entrant in (PYBATCHER, LLAMA_CPP, OPENVINO)}


def choose(names: str) -> list[Entrant]:
    """The entrants named (separated by commas), pybatcher first; "" is all that are installed.

    Ends the program with what to do where one is named that is unknown or not installed.
    """
    if not names:
        return [entrant for entrant in ALL.values() if entrant.is_installed]
    wanted = [name for name in names.split(",") if name != PYBATCHER.name]
    for name in wanted:
        if name not in ALL:
            sys.exit(f"{name!r} is no contestant; there are {', '.join(ALL)}")
        if not ALL[name].is_installed:
            sys.exit(f"{name} is not installed: run `make {ALL[name].make_target}` first")
    return [PYBATCHER, *(ALL[name] for name in ALL if name in wanted)]
