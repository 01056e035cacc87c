"""A strict pyright finds the mistakes of programs, and nothing else: `make test-types`."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
from typed_programs import OPTIONS, RESULTS, Program

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("program", [OPTIONS, RESULTS], ids=["options", "results"])
def test_pyright_finds_the_mistakes(program: Program, tmp_path: Path) -> None:
    text, wrong = program
    (tmp_path / "program.py").write_text(text)
    options = {
        "include": ["program.py"],
        "extraPaths": [str(ROOT), sysconfig.get_paths()["purelib"]],
        "typeCheckingMode": "strict",
        "reportMissingModuleSource": "none",
        "reportUnusedVariable": "none",
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(options))
    pyright = [os.environ["PYBATCHER_PYRIGHT"], "--outputjson", "--project", str(tmp_path)]
    ended = subprocess.run(pyright, capture_output=True, text=True, timeout=300)
    found = json.loads(ended.stdout)["generalDiagnostics"]
    lines = {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}
    assert sorted(lines) == wrong, ended.stdout
