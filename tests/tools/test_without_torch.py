"""The plugin by which `make test-python` leaves out what needs torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent / "support"
LACKING = """
import pytest


@pytest.fixture
def weights():
    raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")


def test_of_weights(weights): ...


def test_in_a_chain():
    try:
        raise ModuleNotFoundError("No module named 'transformers'", name="transformers")
    except ImportError as error:
        raise RuntimeError("no oracle") from error


def test_of_another_module():
    raise ModuleNotFoundError("No module named 'torchlike'", name="torchlike")


def test_that_fails():
    assert 1 == 2


def test_that_passes(): ...
"""


def test_only_what_lacks_torch_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_lacking.py").write_text(LACKING)
    missing = "raise ModuleNotFoundError(\"No module named 'torch'\")"
    (tmp_path / "test_not_collected.py").write_text(f"{missing}\n")
    command = [sys.executable, "-m", "pytest", "-p", "without_torch", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "-q", "-rfEs", "--rootdir", tmp_path, tmp_path],
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert re.search(r"^2 failed, 1 passed, 3 skipped", ran.stdout, re.MULTILINE), ran.stdout
    failed = re.findall(r"^FAILED \S+::(\w+)", ran.stdout, re.MULTILINE)
    assert failed == ["test_of_another_module", "test_that_fails"]
    assert len(re.findall(r"No module named '(?:torch|transformers)'", ran.stdout)) >= 3
