"""bench.gpu_check on the emulator: what it is to say on a GPU, it says here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("results")
    command = ["-m", "bench.gpu_check", "--stage", "a,b,d", "--device", "emulated"]
    done = subprocess.run(
        [sys.executable, *command, "--out", str(folder)], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(file.read_text()) for file in folder.glob("gpu-*-emulated.json")]
    assert len(found) == 3
    return {result["stage"]: result for result in found}


def test_every_kernel_has_the_same_bits_under_another_order(
    results: dict[str, dict[str, Any]],
) -> None:
    bits = results["a"]
    assert (bits["verdict"], bits["failures"], bits["left_out"]) == ("passed", [], {})
    assert bits["figures"]["same_as_emulator"] == bits["figures"]["cases"] > 200
    assert bits["figures"]["mma_model"] == "hopper"


def test_tests_of_the_emulated_gpu_are_run(results: dict[str, dict[str, Any]]) -> None:
    tests = results["b"]
    assert (tests["verdict"], tests["failures"], tests["left_out"]) == ("passed", [], {})
    assert tests["figures"]["passed"] >= 2


def test_every_part_of_the_speed_is_measured_and_none_called_a_gpus(
    results: dict[str, dict[str, Any]],
) -> None:
    speed = results["d"]
    assert (speed["verdict"], speed["failures"]) == ("passed", [])
    figures = speed["figures"]
    assert figures["device"] == "emulated"
    assert set(figures["parts"]) >= {"engine", "batches", "mixed", "shared"}
    assert all(
        row.get("of_copy", row.get("of_dense")) > 0 for row in figures["parts"]["engine"]["rows"]
    )


def test_results_of_the_emulator_say_so(results: dict[str, dict[str, Any]]) -> None:
    assert {result["device"] for result in results.values()} == {"cuda (emulated)"}
    assert all(result["small"] for result in results.values())
