"""The JSON-Schema-Test-Suite (`make test-schemas`) and pyright (`make test-types`).

They need what only a registry has, so `make test` does not collect them.
"""

from __future__ import annotations

import os

_FILES = {"schemas": "test_schema_suite.py", "types": "test_pyright.py"}
collect_ignore = [
    file for suite, file in _FILES.items() if os.environ.get("PYBATCHER_TEST_SUITES") != suite
]
