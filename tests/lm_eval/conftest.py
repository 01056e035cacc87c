"""lm-evaluation-harness against a server: `make test-lm-eval` installs it and runs these tests.

It comes from a package index with 600 MB of what it needs, so `make test` does not collect them.
"""

from __future__ import annotations

import os

if not os.environ.get("PYBATCHER_LM_EVAL"):
    collect_ignore_glob = ["test_*.py"]
