"""Tests of the CUDA backend on an emulated GPU: `make test-emulated` builds one and runs them.

No other build has the device, so `make test` does not collect them. On a GPU bench/gpu/gpu_check.py
runs them, with PYBATCHER_TEST_GPU=real: all but those that are marked `emulator`.
"""

from __future__ import annotations

import os

import pytest
from emulated_engine import ON_GPU

if os.environ.get("PYBATCHER_TEST_DEVICE") != "cuda":
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest first: otherwise one process works on it alone at the end.
    items.sort(key=lambda item: item.path.name != "test_gpu_check.py")
    if not ON_GPU:
        return
    for item in items:
        if item.get_closest_marker("emulator"):
            item.add_marker(pytest.mark.skip(reason="needs what only the emulated GPU does"))
