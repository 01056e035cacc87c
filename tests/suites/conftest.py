"""The JSON-Schema-Test-Suite: `make test-schemas` fetches it and runs these tests.

They need what only a registry has, so `make test` does not collect them.
"""

from __future__ import annotations

import os

if os.environ.get("PYBATCHER_TEST_SUITES") != "schemas":
    collect_ignore_glob = ["test_*.py"]
