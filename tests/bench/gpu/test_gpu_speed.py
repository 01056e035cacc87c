from __future__ import annotations

from typing import Any

import pytest

from bench.gpu.outcome import FAILED, PASSED
from bench.gpu.sizes import FULL, SMALL, bytes_of_step, flop_of_prefill, of_limits
from bench.gpu.speed import collect, limits_of

Row = dict[str, Any]

LIMITS = {"copy_gb_s": 4000.0, "dense_tflop_s": 700.0}


def results(**more: list[Row]) -> dict[str, list[Row]]:
    batch = {"kind": "batch", "batch": 64, "tokens_per_s": 300.0}
    return {
        "dense": [{"n": 64, "torch_tflop_s": 700.0}],
        "engine": [
            {"facts": {"name": "pybatcher"}},
            {"kind": "decode", "batch": 1, "context": 100, "tokens_per_s": 100.0},
        ],
        "batches": [batch],
        "transformers": [batch | {"tokens_per_s": 200.0}],
    } | more


def test_bytes_and_operations_of_the_8b_shape() -> None:
    # 8.03e9 parameters, of which 0.525e9 are the embedding; 128 KiB of KV a position.
    assert bytes_of_step(FULL.config, 1, 0) == pytest.approx(2 * (8.03e9 - 0.525e9), rel=1e-3)
    kv = bytes_of_step(FULL.config, 64, 100) - bytes_of_step(FULL.config, 64, 0)
    assert kv == 64 * 100 * 128 * 1024
    # Products of 6.98e9 weights; attention adds 2 * 4096 * 32 * n^2.
    assert flop_of_prefill(FULL.config, 8192) == pytest.approx(1.32e14, rel=1e-2)


def test_rows_as_parts_of_the_limits() -> None:
    decode = {"kind": "decode", "batch": 64, "context": 200, "tokens_per_s": 64 * 100.0}
    found = of_limits(decode, FULL, LIMITS)
    expected = 100 * bytes_of_step(FULL.config, 64, 200) / 1e9
    assert found["read_gb_s"] == pytest.approx(expected)
    assert found["of_copy"] == pytest.approx(expected / 4000)
    prefill = {"kind": "prefill", "tokens": 8192, "tokens_per_s": 8192 * 2.0}
    found = of_limits(prefill, FULL, LIMITS)
    assert found["of_dense"] == pytest.approx(2 * flop_of_prefill(FULL.config, 8192) / 7e14)


def test_the_dense_rate_says_by_what_it_was_measured() -> None:
    native = [
        {"copy_gb_s": 3.0, "gemm_tflop_s": 5.0, "gemm": "ours"},
        {"copy_gb_s": 1.0, "gemm_tflop_s": 7.0, "gemm": "ours"},
    ]
    found = limits_of(native, [{"torch_tflop_s": 9.0}])
    assert (found["copy_gb_s"], found["dense_tflop_s"]) == (2.0, 9.0)
    assert found["dense_by"] == "torch.matmul"
    found = limits_of(native, [{"not_run": "no torch"}])
    assert (found["dense_tflop_s"], found["dense_by"]) == (6.0, "ours")
    assert "tma_tflop_s" not in found


def test_both_kernels_of_hopper_are_among_the_limits() -> None:
    row = {"copy_gb_s": 3.0, "gemm_tflop_s": 5.0, "gemm": "ours", "wgmma_tflop_s": 7.0}
    native = [row | {"tma_tflop_s": 8.0}, row | {"tma_tflop_s": 10.0}]
    found = limits_of(native, [])
    assert (found["wgmma_tflop_s"], found["tma_tflop_s"]) == (7.0, 9.0)
    assert "tma_tflop_s" not in limits_of([native[0], row], [])  # maps were refused in one run


def test_figures_are_collected_beside_those_of_transformers() -> None:
    outcome = collect(results(), FULL, LIMITS, "cuda")
    assert outcome.verdict == PASSED
    assert outcome.figures["ratio_to_transformers"] == {"batch 64": 1.5}
    assert outcome.figures["parts"]["engine"]["facts"] == {"name": "pybatcher"}
    assert "of_copy" in outcome.figures["parts"]["engine"]["rows"][0]
    assert collect(results(), SMALL, LIMITS, "emulated").figures["device"] == "emulated"


def test_a_part_without_figures_is_left_out_with_its_reason_or_failed() -> None:
    outcome = collect(
        results(transformers=[{"not_run": "torch has no CUDA here"}]), FULL, LIMITS, "cuda"
    )
    assert outcome.verdict == PASSED
    assert outcome.left_out == {"transformers": "torch has no CUDA here"}
    assert outcome.figures["ratio_to_transformers"] == {}
    outcome = collect(results(transformers=[{"error": "ended with 1"}]), FULL, LIMITS, "cuda")
    assert (outcome.verdict, outcome.left_out) == (PASSED, {"transformers": "ended with 1"})
    outcome = collect(results(engine=[]), FULL, LIMITS, "cuda")
    assert (outcome.verdict, outcome.failures) == (FAILED, ("engine: no figures",))
    outcome = collect(results(engine=[{"error": "ended with 1"}]), FULL, LIMITS, "cuda")
    assert (outcome.verdict, outcome.failures) == (FAILED, ("engine: ended with 1",))
