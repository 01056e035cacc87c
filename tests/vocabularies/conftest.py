"""Real vocabularies as GGUF files: `make test-vocabularies` downloads them and runs these tests.

`make test` does not collect them, since they need a package index and 76 MB.
"""

from __future__ import annotations

import os

if not os.environ.get("PYBATCHER_VOCABULARIES"):
    collect_ignore_glob = ["test_*.py"]
