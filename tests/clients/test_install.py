"""Where a registry is not there, what is missing is said, and nothing is green."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

INSTALL = Path(__file__).with_name("install.py")
NOWHERE = "http://127.0.0.1:9/"


@pytest.mark.parametrize(("section", "registry"), [("python", "PyPI"), ("node", "npm")])
def test_a_registry_that_is_not_there_is_named(section: str, registry: str, tmp_path: Path) -> None:
    pip = {"PIP_INDEX_URL": NOWHERE, "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"}
    pip |= {"PIP_FIND_LINKS": "", "PIP_NO_CACHE_DIR": "1"}
    npm = {"npm_config_registry": NOWHERE, "npm_config_fetch_retries": "0"}
    npm |= {"npm_config_cache": str(tmp_path / "cache")}
    made = subprocess.run(
        [sys.executable, str(INSTALL), str(tmp_path / "clients"), section],
        env={**os.environ, **pip, **npm},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 1
    assert f"the clients of {registry} (section '{section}') could not be installed" in made.stderr
    assert not (tmp_path / "clients" / section / ".installed").exists()
