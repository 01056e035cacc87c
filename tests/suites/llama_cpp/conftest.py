"""Files of llama.cpp's quantiser, and its results: `make test-llamacpp` runs these tests.

It takes minutes to build llama.cpp, so `make test` does not collect them.
"""

from __future__ import annotations

import os

if os.environ.get("PYBATCHER_TEST_SUITES") != "llama_cpp":
    collect_ignore_glob = ["test_*.py"]
