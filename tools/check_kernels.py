"""Compile the CUDA kernels for every architecture and fail on what would make them slow.

    python -m tools.check_kernels [--nvcc PATH]

A kernel may not spill registers or use local memory, but for `ATTENTION_SPILLS`, and has a
budget of registers: what the multiprocessor's 65,536 allow if 512 threads are to be resident, or
what `BUDGETS` says.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "csrc" / "cuda" / "kernels"
ARCHITECTURES = (80, 89, 90, 100)

REGISTERS = 128
# Kernels that hold large tiles in registers, and how many each may use.
BUDGETS: dict[str, int] = {
    **{f"gemm_{dtype}_128x128": 255 for dtype in ("bf16", "int8", "int4")},
    **{f"gemm_{dtype}_64x64": 168 for dtype in ("bf16", "int8", "int4")},
    **{f"gemm_{dtype}_few32": 152 for dtype in ("bf16", "int8", "int4")},
    **{
        f"attention_{kv}_{dim}_{tile}": registers
        for kv in ("bf16", "f16", "int8")
        for dim in (64, 96, 128, 256)
        for tile, registers in (("small", 168), ("large", 255))
    },
}
# Bytes that an attention kernel may spill: with some of them ptxas does, on one architecture or
# another, and none of it has been seen on a GPU.
ATTENTION_SPILLS = 48
STATIC_SHARED_BYTES = 48 * 1024


@dataclass(frozen=True)
class KernelUse:
    """What one kernel uses on one architecture, by `ptxas -v`."""

    name: str
    architecture: str
    registers: int
    stack_bytes: int
    spilled_bytes: int
    static_shared_bytes: int

    def problems(self) -> Iterator[str]:
        """What is beyond the kernel's budget."""
        budget = BUDGETS.get(self.name, REGISTERS)
        may_spill = ATTENTION_SPILLS if self.name.startswith("attention_") else 0
        if self.spilled_bytes > may_spill:
            yield f"spills {self.spilled_bytes} bytes"
        if self.stack_bytes > may_spill:
            yield f"has {self.stack_bytes} bytes of local memory"
        if self.registers > budget:
            yield f"uses {self.registers} registers, its budget is {budget}"
        if self.static_shared_bytes > STATIC_SHARED_BYTES:
            yield f"uses {self.static_shared_bytes} bytes of static shared memory"


def parse(output: str) -> list[KernelUse]:
    """Return what `ptxas -v` said of each kernel, in its order."""
    uses = []
    for part in output.split("Compiling entry function ")[1:]:
        head = re.match(r"'([^']+)' for '([^']+)'", part)
        registers = re.search(r"Used (\d+) registers", part)
        stack = re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part
        )
        if head is None or registers is None or stack is None:
            raise ValueError(f"this is not what ptxas -v says: {part[:200]}")
        shared = re.search(r"(\d+) bytes smem", part)
        uses.append(
            KernelUse(
                name=head[1],
                architecture=head[2],
                registers=int(registers[1]),
                stack_bytes=int(stack[1]),
                spilled_bytes=int(stack[2]) + int(stack[3]),
                static_shared_bytes=int(shared[1]) if shared else 0,
            )
        )
    return uses


def nvcc_flags() -> list[str]:
    """Return the flags that the build compiles kernels with."""
    text = (ROOT / "cmake" / "cuda_kernels.cmake").read_text()
    flags = re.search(r"set\(PB_NVCC_FLAGS ([^)]*)\)", text)
    assert flags is not None
    return flags[1].split()


def headers_left_out(folder: Path = KERNELS) -> list[str]:
    """Return the kernels' headers that `kernels.cu` does not include, however far down."""
    included: set[str] = set()
    to_read = ["kernels.cu"]
    while to_read:
        text = (folder / to_read.pop()).read_text()
        for name in re.findall(r'#include "cuda/kernels/([^"]+)"', text):
            if name not in included:
                included.add(name)
                to_read.append(name)
    return sorted(p.name for p in folder.glob("*.cuh") if p.name not in included)


def compile_kernels(nvcc: str, architecture: int) -> str:
    """Return what nvcc says of the kernels for one architecture; exit where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(nvcc, *nvcc_flags(), "-Xptxas", "-v", "-cubin"),
                f"-gencode=arch=compute_{architecture},code=sm_{architecture}",
                *(f"-I{ROOT / 'csrc'}", "-o", f"{folder}/kernels.cubin"),
                str(KERNELS / "kernels.cu"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        sys.exit(f"sm_{architecture}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def main() -> int:
    """Print what every kernel uses; return 1 if one is beyond its budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nvcc", default="nvcc")
    nvcc = parser.parse_args().nvcc
    status = 0
    for header in headers_left_out():
        print(f"FAILED: kernels.cu does not include {header}")
        status = 1
    for architecture in ARCHITECTURES:
        uses = parse(compile_kernels(nvcc, architecture))
        print(f"sm_{architecture}: {len(uses)} kernels")
        for use in uses:
            print(
                f"  {use.name:40} {use.registers:4} registers {use.static_shared_bytes:6} B shared"
            )
            for problem in use.problems():
                print(f"FAILED: {use.name} for {use.architecture} {problem}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
