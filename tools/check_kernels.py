"""Compile the CUDA kernels for every architecture, or some, and fail on slow code.

    python -m tools.check_kernels [--nvcc PATH] [--only sm_80 ...]

A kernel must not spill registers or use local memory, and has a budget of registers: the share of
the multiprocessor's 65,536 registers for 512 resident threads, or its entry in `BUDGETS`. ptxas
must not serialise its wgmma.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "csrc"
KERNELS = "cuda/image/kernels.cu"
# The virtual architectures of the PTX, and the real ones of each, as in cmake/cuda_kernels.cmake.
ARCHITECTURES = {"compute_80": ("sm_80", "sm_89", "sm_100"), "compute_90a": ("sm_90a",)}

REGISTERS = 128
# Formats of mma's weights: bf16 and the formats that have CUDA kernels.
FORMATS = re.findall(
    r"ROW\(FORMAT, \w+, (\w+), \w+, cuda\)", (SOURCES / "formats/list.h").read_text()
)
DTYPES = ("bf16", *FORMATS)
# Kernels that hold large tiles in registers, and the most registers of each.
# The 128 threads of a few32 or 64x64 kernel leave as many blocks resident with these as with less.
BUDGETS: dict[str, int] = {
    **{
        f"gemm_{dtype}_{tile}": registers
        for dtype in DTYPES
        for tile, registers in (
            ("128x128", 255),
            ("64x64", 168),
            ("few32", 168),
            ("wgmma", 255),
            ("tma", 255),
        )
    },
    # The budget at the start, for 384 threads: setmaxnreg moves registers from the copying threads
    # to the others.
    "gemm_bf16_tma": 168,
    **{  # these load what plain products have as parameters
        f"experts_{dtype}_{tile}": registers
        for dtype in DTYPES
        for tile, registers in (("64x64", 248), ("few32", 208), ("wgmma", 255))
    },
    "gemm_q3_k_few16": 136,  # its codes are in registers: 3 blocks of 128 threads instead of 4
    "experts_f32": 160,
    **{
        f"attention_{kv}_{dim}_{tile}": registers
        for kv in ("bf16", "f16", "int8")
        for dim, small, large in (
            (64, 128, 192),
            (96, 128, 240),
            (128, 128, 255),
            (256, 192, 255),
            (512, 255, 255),
        )
        for tile, registers in (("small", small), ("large", large))
    },
    # These have 384 threads, too.
    **{f"attention_{kv}_{dim}_tma": 168 for kv in ("bf16", "f16") for dim in (64, 128)},
    "attention_f32_small": 168,
    "attention_f32_512_small": 168,
    "delta_rule_256": 168,
}
STATIC_SHARED_BYTES = 48 * 1024
WGMMA_NOTE = re.compile(r"\(C75\d\d\) (.*) in (?:the )?function '(\w+)'")


@dataclass(frozen=True)
class KernelUse:
    """The resources of one kernel on one architecture, from `ptxas -v`."""

    name: str
    architecture: str
    registers: int
    stack_bytes: int
    spilled_bytes: int
    static_shared_bytes: int
    wgmma_note: str = ""  # ptxas' message if it has added waits

    def problems(self) -> Iterator[str]:
        """The resources beyond the kernel's budget."""
        budget = BUDGETS.get(self.name, REGISTERS)
        if self.spilled_bytes > 0:
            yield f"spills {self.spilled_bytes} bytes"
        if self.stack_bytes > 0:
            yield f"has {self.stack_bytes} bytes of local memory"
        if self.registers > budget:
            yield f"uses {self.registers} registers, its budget is {budget}"
        if self.static_shared_bytes > STATIC_SHARED_BYTES:
            yield f"uses {self.static_shared_bytes} bytes of static shared memory"
        if self.wgmma_note:
            yield f"has waits that ptxas added: {self.wgmma_note}"


def parse(output: str) -> list[KernelUse]:
    """Return the output of `ptxas -v` for each kernel, in order."""
    uses = []
    notes = {name: note for note, name in WGMMA_NOTE.findall(output)}
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
                wgmma_note=notes.get(head[1], ""),
            )
        )
    return uses


def nvcc_flags() -> list[str]:
    """Return the flags that the build compiles kernels with."""
    text = (ROOT / "cmake" / "cuda_kernels.cmake").read_text()
    flags = re.search(r"set\(PB_NVCC_FLAGS ([^)]*)\)", text)
    assert flags is not None
    return flags[1].split()


def headers_left_out(sources: Path = SOURCES) -> list[str]:
    """Return the kernels' headers that `kernels.cu` does not include, directly or indirectly."""
    included: set[str] = set()
    to_read = [KERNELS]
    while to_read:
        text = (sources / to_read.pop()).read_text()
        for name in re.findall(r'#include "(cuda/[^"]+)"', text):
            if name not in included:
                included.add(name)
                to_read.append(name)
    headers = (p.relative_to(sources).as_posix() for p in sources.glob("cuda/**/*.cuh"))
    return sorted(name for name in headers if name not in included)


def run_nvcc(nvcc: str, architecture: str, *arguments: str) -> str:
    """Return nvcc's output for one architecture. Exits if it fails."""
    done = subprocess.run(
        [nvcc, *nvcc_flags(), f"-arch={architecture}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{architecture}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def compile_kernels(nvcc: str, only: Collection[str]) -> dict[str, list[KernelUse]]:
    """Return the resources of each kernel, by architecture. One compiler runs per core."""
    pairs = [
        (virtual, real)
        for virtual, reals in ARCHITECTURES.items()
        for real in reals
        if real in only
    ]
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(cores) as pool:

        def make_ptx(virtual: str) -> None:
            source = str(SOURCES / KERNELS)
            to = f"{folder}/{virtual}.ptx"
            run_nvcc(nvcc, virtual, "-ptx", f"-I{SOURCES}", "-o", to, source)

        def assemble(of: tuple[str, str]) -> list[KernelUse]:
            virtual, real = of
            source = f"{folder}/{virtual}.ptx"
            to = f"{folder}/{real}.cubin"
            return parse(run_nvcc(nvcc, real, "-cubin", "-Xptxas", "-v", "-o", to, source))

        list(pool.map(make_ptx, {virtual for virtual, _ in pairs}))
        uses = pool.map(assemble, pairs)
        return {real: found for (_, real), found in zip(pairs, uses, strict=True)}


def main() -> int:
    """Print what every kernel uses; return 1 if one is beyond its budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nvcc", default="nvcc")
    every = list(chain(*ARCHITECTURES.values()))
    parser.add_argument("--only", nargs="+", choices=every, default=every)
    arguments = parser.parse_args()
    status = 0
    for header in headers_left_out():
        print(f"FAILED: kernels.cu does not include {header}")
        status = 1
    for architecture, uses in compile_kernels(arguments.nvcc, arguments.only).items():
        print(f"{architecture}: {len(uses)} kernels")
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
