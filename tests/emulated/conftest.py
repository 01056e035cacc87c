"""Tests of the CUDA backend on an emulated GPU: `make test-emulated` builds one and runs them.

No other build has the device, so `make test` does not collect them.
"""

from __future__ import annotations

import os

if os.environ.get("PYBATCHER_TEST_DEVICE") != "cuda":
    collect_ignore_glob = ["test_*.py"]
