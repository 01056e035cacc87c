from __future__ import annotations

import re
from itertools import chain
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


def test_products_that_wait_for_each_other_are_a_problem() -> None:
    note = "warpgroup.wait is injected in around line 3 by compiler to allow use of registers"
    said = f"ptxas info    : (C7517) {note} defined by GMMA in function 'few'\n"
    many, few = parse(said + OUTPUT)
    assert many.wgmma_note == ""
    assert few.wgmma_note == f"{note} defined by GMMA"
    assert f"has waits that ptxas added: {note} defined by GMMA" in few.problems()
    said = "(C7510) products are serialized due to a call in the function 'many'\n"
    assert parse(said + OUTPUT)[0].wgmma_note == "products are serialized due to a call"


def test_kernels_are_checked_as_they_are_built() -> None:
    assert "-fmad=false" in nvcc_flags()
    build = (check_kernels.ROOT / "cmake" / "cuda_kernels.cmake").read_text()
    for virtual, real in {"compute_80": "[${of_80}]", "compute_90a": "sm_90a"}.items():
        assert f"-gencode=arch={virtual},code={real}" in build
    assert set(check_kernels.ARCHITECTURES) == {"compute_80", "compute_90a"}
    found = (check_kernels.ROOT / "cmake" / "cuda.cmake").read_text()
    for real in chain(*check_kernels.ARCHITECTURES.values()):
        assert re.search(rf"^set\(PB_CUDA_[A-Z_]*\b.* {re.sub(r'[^0-9]', '', real)}\b", found, re.M)


# An nvcc that says of its architecture what ptxas would; PTX is what it was made for.
NVCC = """#!/bin/sh
for argument; do
  case $last in -o) to=$argument ;; esac
  case $argument in -arch=*) architecture=${argument#-arch=} ;; esac
  last=$argument
done
case " $* " in
  *" -ptx "*) echo "$architecture" >"$to" ;;
  *) echo "Compiling entry function '$(cat "$last")' for '$architecture'"
     echo "    0 bytes stack frame, 0 bytes spill stores, 8 bytes spill loads"
     echo "Used 32 registers" ;;
esac
"""


@pytest.fixture
def nvcc(tmp_path: Path) -> str:
    path = tmp_path / "nvcc"
    path.write_text(NVCC)
    path.chmod(0o755)
    return str(path)


def test_a_kernel_that_spills_fails_the_check(
    nvcc: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["check_kernels", "--nvcc", nvcc])
    assert check_kernels.main() == 1
    said = capsys.readouterr().out
    for virtual, reals in check_kernels.ARCHITECTURES.items():
        for real in reals:
            assert f"FAILED: {virtual} for {real} spills 8 bytes" in said


def test_some_architectures_can_be_asked_for(
    nvcc: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["check_kernels", "--nvcc", nvcc, "--only", "sm_89", "sm_90a"])
    assert check_kernels.main() == 1
    said = capsys.readouterr().out
    assert "compute_80 for sm_89" in said
    assert "compute_90a for sm_90a" in said
    assert "sm_80:" not in said
    assert "sm_100:" not in said


def test_every_header_of_kernels_is_compiled() -> None:
    assert headers_left_out() == []


def test_a_header_that_is_left_out_is_named(tmp_path: Path) -> None:
    texts = {
        "image/kernels.cu": '#include "cuda/gemm/gemm.cuh"\n',
        "gemm/gemm.cuh": '#include "cuda/gemm/tile.cuh"\n',
        "gemm/tile.cuh": "#pragma once\n",
        "attention/attention.cuh": "#pragma once\n",
    }
    for name, text in texts.items():
        (tmp_path / "cuda" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cuda" / name).write_text(text)
    assert headers_left_out(tmp_path) == ["cuda/attention/attention.cuh"]
