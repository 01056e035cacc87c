"""Instruction sets that engines can be restricted to, so that a comparison is on equal terms."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from bench.common.results import RESULTS

__all__ = ["ISAS", "NATIVE", "Isa", "add_isa_argument"]

_LLAMA_AVX2 = ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set, or all instructions of the CPU.

    target: the value of PYBATCHER_CPU_TARGET. onednn: the value of ONEDNN_MAX_CPU_ISA, which
        OpenVINO and vLLM obey in matrix products; they choose their own code by the CPU. llama: the
        parts of ggml to compile, as in `make rival-llamacpp ISA=...`. If all are empty, nothing is
        restricted.
    """

    name: str
    target: str = ""
    onednn: str = ""
    llama: tuple[str, ...] = ()

    @property
    def results(self) -> Path:
        """The folder for results of engines that are restricted to it."""
        return RESULTS / self.name if self.target else RESULTS

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that restrict an engine to it."""
        if not self.target:
            return {}
        return {
            "PYBATCHER_CPU_TARGET": self.target,
            "ONEDNN_MAX_CPU_ISA": self.onednn,
            "ATEN_CPU_CAPABILITY": "avx512" if "AVX512" in self.onednn else "avx2",
        }

    @property
    def cmake_arguments(self) -> str:
        """The CMake arguments for ggml."""
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


if __name__ == "__main__":  # the Makefile runs it
    import sys

    print(ISAS[sys.argv[1]].cmake_arguments)
