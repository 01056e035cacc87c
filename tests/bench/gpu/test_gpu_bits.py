from __future__ import annotations

from typing import Any

from bench.gpu.bits import Bits, compare, mma_model, read_bits
from bench.gpu.outcome import FAILED, PASSED

Lines = list[dict[str, Any]]


def case(name: str, group: str, hash_: str, *, mma: bool = False) -> dict[str, Any]:
    return {"case": name, "group": group, "mma": mma, "bytes": 4, "hash": hash_}


def left_out(name: str, group: str) -> dict[str, Any]:
    return {"case": name, "group": group, "mma": True, "not_run": "wgmma is sm_90a's"}


def lines(*cases: dict[str, Any], end: bool = True) -> Lines:
    n = sum("hash" in line for line in cases)
    last = [{"cases": n, "not_launched": []}] if end else []
    return [{"device": "GPU", "capability": [9, 0], "mma": "hopper"}, *cases, *last]


NORM = case("norm", "norm", "aa")
SMALL = case("gemm by few8", "gemm", "bb", mma=True)
LARGE = case("gemm by 128x128", "gemm", "bb", mma=True)
WGMMA = case("gemm by wgmma", "gemm", "bb", mma=True)
ALL = lines(NORM, SMALL, LARGE, WGMMA)


def verdict_of(gpu: Lines, emulator: Lines = ALL, *, has_model: bool = True) -> tuple[str, str]:
    outcome = compare(read_bits(gpu), read_bits(emulator), has_model=has_model)
    return outcome.verdict, "\n".join(outcome.failures)


def test_the_same_bits_pass() -> None:
    outcome = compare(read_bits(ALL), read_bits(ALL), has_model=True)
    assert outcome.verdict == PASSED
    assert outcome.checks == 5  # four cases, and the group of three
    assert outcome.figures["same_as_emulator"] == 4
    assert outcome.figures["groups"] == 1


def test_a_hash_that_differs_fails() -> None:
    verdict, failures = verdict_of(lines(case("norm", "norm", "ab"), SMALL, LARGE, WGMMA))
    assert verdict == FAILED
    assert failures == "norm: ab on the GPU, aa on the emulator"


def test_a_case_that_is_missing_on_either_side_fails() -> None:
    verdict, failures = verdict_of(lines(NORM, SMALL, WGMMA))
    assert (verdict, failures) == (FAILED, "gemm by 128x128: not run on the GPU")
    verdict, failures = verdict_of(ALL, lines(NORM, SMALL, WGMMA))
    assert (verdict, failures) == (FAILED, "gemm by 128x128: not run on the emulator")
    verdict, _ = verdict_of(lines(NORM, SMALL, WGMMA), has_model=False)
    assert verdict == FAILED


def test_a_run_that_was_cut_off_fails() -> None:
    verdict, failures = verdict_of(lines(NORM, SMALL, LARGE, WGMMA, end=False))
    assert verdict == FAILED
    assert failures == "GPU: the program ended before its last case"
    verdict, failures = verdict_of(ALL, ALL[:-1])
    assert failures == "emulator: the program ended before its last case"
    assert verdict_of([], [])[0] == FAILED


def test_cases_of_a_group_that_differ_fail_whatever_the_emulator_says() -> None:
    other = lines(NORM, SMALL, LARGE, case("gemm by wgmma", "gemm", "bc", mma=True))
    for has_model in (True, False):
        verdict, failures = verdict_of(other, other, has_model=has_model)
        assert verdict == FAILED
        assert failures == "gemm by wgmma: bc, but bb of gemm by few8"


def test_without_a_model_cases_with_mma_are_compared_within_their_groups_only() -> None:
    cases = [case(f"gemm by {k}", "gemm", "cc", mma=True) for k in ("few8", "128x128", "wgmma")]
    verdict, failures = verdict_of(lines(NORM, *cases), has_model=False)
    assert (verdict, failures) == (PASSED, "")
    assert verdict_of(lines(NORM, *cases))[0] == FAILED
    verdict, _ = verdict_of(lines(case("norm", "norm", "ab"), *cases), has_model=False)
    assert verdict == FAILED


def test_what_a_device_cannot_run_is_named_and_neither_passed_nor_failed() -> None:
    outcome = compare(
        read_bits(lines(NORM, SMALL, LARGE, left_out("gemm by wgmma", "gemm"))),
        read_bits(ALL),
        has_model=True,
    )
    assert outcome.verdict == PASSED
    assert outcome.left_out == {"gemm by wgmma": "wgmma is sm_90a's"}
    assert outcome.figures["same_as_emulator"] == 3


def test_errors_and_kernels_without_a_case_fail() -> None:
    broken = {"case": "norm", "group": "norm", "mma": False, "error": "an illegal address"}
    verdict, failures = verdict_of(lines(broken, SMALL, LARGE, WGMMA))
    assert verdict == FAILED
    assert "GPU: norm: an illegal address" in failures
    emulator = [*ALL[:-1], {"cases": 4, "not_launched": ["gemm_new"]}]
    assert verdict_of(ALL, emulator) == (FAILED, "no case launches the kernel gemm_new")
    assert "norm: there twice" in verdict_of([*ALL[:-1], NORM, ALL[-1]])[1]
    assert read_bits([{"error": "no memory"}]).errors == ("no memory",)


def test_models_by_compute_capability() -> None:
    assert [mma_model(c) for c in ([8, 0], [8, 9], [9, 0])] == ["ampere", "ampere", "hopper"]
    assert mma_model([10, 0]) is None
    assert mma_model([]) is None


def test_what_is_read() -> None:
    found: Bits = read_bits(ALL)
    assert found.device["capability"] == [9, 0]
    assert found.is_complete
    assert found.with_mma == {"gemm by few8", "gemm by 128x128", "gemm by wgmma"}
