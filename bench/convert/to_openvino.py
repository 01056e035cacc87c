"""Export a checkpoint for OpenVINO GenAI, through optimum-intel.

    .venv-openvino/bin/python -m bench.to_openvino bench/checkpoints/llama-3.2-1b int8

bf16 is exported as fp16 (OpenVINO computes in bf16 where the CPU can), int8 and int4 are
symmetric: one scale per output channel, and groups of 128, the settings of OpenVINO's own guides
(64 where 128 divides no row). An existing export is left alone. A 1B model takes minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

FORMATS = {
    "bf16": ["--weight-format", "fp16"],
    "int8": ["--weight-format", "int8", "--sym"],
    "int4": ["--weight-format", "int4", "--sym", "--ratio", "1.0"],
}


def group_size(config: dict[str, Any]) -> int:
    """Return the largest of 128, 64, 32 that divides every row of every matrix."""
    rows = (config["hidden_size"], config["intermediate_size"])
    return next(size for size in (128, 64, 32) if not any(n % size for n in rows))


def to_openvino(directory: Path, dtype: str) -> Path:
    """Return the exported directory beside the checkpoint's files; make it if needed."""
    target = directory / f"openvino-{dtype}"
    if target.exists():
        return target
    if dtype not in FORMATS:
        raise ValueError(f"dtype is {dtype!r}; the export knows {', '.join(FORMATS)}")
    unfinished = target.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [
        *(str(Path(sys.executable).parent / "optimum-cli"), "export", "openvino"),
        *("--model", str(directory), "--task", "text-generation-with-past"),
        *FORMATS[dtype],
    ]
    if dtype == "int4":
        config = json.loads((directory / "config.json").read_text())
        command += ["--group-size", str(group_size(config))]
    command.append(str(unfinished))
    # Offline mode, because the checkpoint is on the disk.
    done = subprocess.run(
        command,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0 or not (unfinished / "openvino_model.xml").exists():
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}")
    return unfinished.rename(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("dtype", choices=sorted(FORMATS))
    arguments = parser.parse_args()
    print(to_openvino(arguments.directory, arguments.dtype))


if __name__ == "__main__":
    main()
