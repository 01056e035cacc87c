from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_kernels
from tools.check_kernels import KernelUse, headers_left_out, nvcc_flags, parse

# What ptxas of CUDA 13.0 says of two kernels.
OUTPUT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'many' for 'sm_90'
ptxas info    : Function properties for many
    840 bytes stack frame, 1916 bytes spill stores, 2052 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 840 bytes cumulative stack size, 1200 bytes smem
ptxas info    : Compile time = 348.443 ms
ptxas info    : Compiling entry function 'few' for 'sm_90'
ptxas info    : Function properties for few
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 130 registers, used 1 barriers, 368 bytes cmem[0]
ptxas info    : Compile time = 12.437 ms
"""


def test_what_ptxas_says_is_read() -> None:
    assert parse(OUTPUT) == [
        KernelUse("many", "sm_90", 32, 840, 1916 + 2052, 1200),
        KernelUse("few", "sm_90", 130, 0, 0, 0),
    ]
    assert parse("ptxas info    : 0 bytes gmem\n") == []


def test_what_ptxas_never_said_is_an_error() -> None:
    with pytest.raises(ValueError, match="not what ptxas -v says"):
        parse(OUTPUT.replace("registers", "registres"))


def test_what_is_beyond_a_budget_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    many, few = parse(OUTPUT)
    assert list(many.problems()) == ["spills 3968 bytes", "has 840 bytes of local memory"]
    assert list(few.problems()) == ["uses 130 registers, its budget is 128"]
    monkeypatch.setitem(check_kernels.BUDGETS, "few", 130)
    assert list(few.problems()) == []
    large = KernelUse("large", "sm_80", 128, 0, 0, 48 * 1024 + 1)
    assert list(large.problems()) == ["uses 49153 bytes of static shared memory"]


def test_kernels_are_checked_as_they_are_built() -> None:
    assert "-fmad=false" in nvcc_flags()


def test_every_header_of_kernels_is_compiled() -> None:
    assert headers_left_out() == []


def test_a_header_that_is_left_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "kernels.cu").write_text('#include "cuda/kernels/gemm.cuh"\n')
    (tmp_path / "gemm.cuh").write_text('#include "cuda/kernels/tile.cuh"\n')
    for name in ("tile.cuh", "attention.cuh"):
        (tmp_path / name).write_text("#pragma once\n")
    assert headers_left_out(tmp_path) == ["attention.cuh"]
