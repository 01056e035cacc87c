"""`bench.gpu_check` on the emulator: what it is to say on a GPU, it says here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def test_stages_are_checked_and_none_is_called_a_gpus(tmp_path: Path) -> None:
    """All in one: the stages take a minute, and each process of a test run would repeat them."""
    command = ["-m", "bench.gpu_check", "--stage", "a,b,d", "--device", "emulated"]
    done = subprocess.run(
        [sys.executable, *command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(file.read_text()) for file in tmp_path.glob("gpu-*-emulated.json")]
    assert {result["device"] for result in found} == {"cuda (emulated)"}
    assert all(result["small"] for result in found)
    results = {result["stage"]: result for result in found}
    check_bits(results["a"])
    check_tests(results["b"])
    check_speed(results["d"])


def check_bits(bits: dict[str, Any]) -> None:
    """Every kernel has the same bits under another order of its threads."""
    assert (bits["verdict"], bits["failures"], bits["left_out"]) == ("passed", [], {})
    assert bits["figures"]["same_as_emulator"] == bits["figures"]["cases"] > 200
    assert bits["figures"]["mma_model"] == "hopper"


def check_tests(tests: dict[str, Any]) -> None:
    assert (tests["verdict"], tests["failures"], tests["left_out"]) == ("passed", [], {})
    assert tests["figures"]["passed"] >= 2


def check_speed(speed: dict[str, Any]) -> None:
    """Every part of the speed is measured."""
    assert (speed["verdict"], speed["failures"]) == ("passed", [])
    figures = speed["figures"]
    assert figures["device"] == "emulated"
    assert set(figures["parts"]) >= {"engine", "batches", "mixed", "shared"}
    assert all(
        row.get("of_copy", row.get("of_dense")) > 0 for row in figures["parts"]["engine"]["rows"]
    )
