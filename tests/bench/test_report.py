from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import report


def test_the_report_goes_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "ROOT", tmp_path)
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n")
    with pytest.raises(SystemExit, match="no compare-"):
        report.main()
    result = {
        "run": {"cpu": "A CPU", "cores": 2, "memory_gib": 24, "date": "today", "command": "run"},
        "shape": "tiny",
        "dtype": "bf16",
        "threads": 2,
        "contestants": [{"name": "pybatcher"}, {"name": "rival", "version": "1"}],
        "tok/s": [
            {"measure": "B=1", "pybatcher": 30.0, "rival": 20.0, "ratio": 1.5, "rounds": [[30, 20]]}
        ],
    }
    (tmp_path / "bench" / "results").mkdir(parents=True)
    (tmp_path / "bench" / "results" / "compare-tiny.json").write_text(json.dumps(result))
    for _ in range(2):
        report.main()
        text = readme.read_text()
        assert text.startswith(
            "before\n<!-- bench:begin -->\n## Speed\n\nTokens a second, 2 threads, A CPU"
        )
        assert "| tiny bf16 | B=1 | 30.0 | 20.0 | 1.50 |" in text
        assert text.endswith("`run`.\n<!-- bench:end -->\nafter\n")
        assert "old" not in text
