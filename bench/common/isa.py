"""Instruction sets that engines can be held to, so that a comparison is on equal terms."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from bench.common.results import RESULTS

__all__ = ["ISAS", "NATIVE", "Isa", "add_isa_argument"]

_LLAMA_AVX2 = ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set, or all that the CPU has.

    target: of PYBATCHER_CPU_TARGET. onednn: of ONEDNN_MAX_CPU_ISA, which OpenVINO and vLLM multiply
    with; what they compile themselves they choose by the CPU. llama: parts that ggml is compiled
    with, as `make rival-llamacpp ISA=...` has them. All empty: nothing is held.
    """

    name: str
    target: str = ""
    onednn: str = ""
    llama: tuple[str, ...] = ()

    @property
    def results(self) -> Path:
        """The folder of results of engines that are held to it."""
        return RESULTS / self.name if self.target else RESULTS

    @property
    def environment(self) -> dict[str, str]:
        """The variables that hold an engine to it."""
        if not self.target:
            return {}
        return {
            "PYBATCHER_CPU_TARGET": self.target,
            "ONEDNN_MAX_CPU_ISA": self.onednn,
            "ATEN_CPU_CAPABILITY": "avx512" if "AVX512" in self.onednn else "avx2",
        }

    @property
    def cmake_arguments(self) -> str:
        """What ggml is configured with."""
        if not self.llama:
            return ""
        return " ".join(["-DGGML_NATIVE=OFF", *(f"-DGGML_{part}=ON" for part in self.llama)])


NATIVE = Isa("native")
ISAS = {
    isa.name: isa
    for isa in (
        NATIVE,
        Isa("avx2", "avx2", "AVX2", _LLAMA_AVX2),
        Isa("avx_vnni", "avx_vnni", "AVX2_VNNI", (*_LLAMA_AVX2, "AVX_VNNI")),
        Isa(
            "avx512_vnni",
            "avx512_vnni",
            "AVX512_CORE_VNNI",
            (*_LLAMA_AVX2, "AVX512", "AVX512_VNNI"),
        ),
        Isa(
            "avx512_bf16",
            "avx512_bf16",
            "AVX512_CORE_BF16",
            (*_LLAMA_AVX2, "AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16"),
        ),
    )
}


def add_isa_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--isa", choices=list(ISAS), default=NATIVE.name, help="hold all engines to it"
    )


if __name__ == "__main__":  # for the Makefile
    import sys

    print(ISAS[sys.argv[1]].cmake_arguments)
