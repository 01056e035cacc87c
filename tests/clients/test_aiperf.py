"""aiperf against `pybatcher serve`: a short load, of which every request succeeds."""

from __future__ import annotations

import json
from pathlib import Path

from client_programs import CLIENTS, Server, closed_environment, run_client


def test_every_request_succeeds(shipped: Server, shipped_model: Path, tmp_path: Path) -> None:
    assert CLIENTS is not None
    counts = {"request-count": 12, "concurrency": 4, "osl": 16, "isl": 32, "random-seed": 7}
    options = [text for name, count in counts.items() for text in (f"--{name}", str(count))]
    where = ["--url", shipped.url, "--model", shipped.model, "--endpoint-type", "chat"]
    more = ["--streaming", "--tokenizer", str(shipped_model), "--extra-inputs", "ignore_eos:true"]
    run_client(
        [
            str(CLIENTS / "aiperf" / "bin" / "aiperf"),
            "profile",
            *where,
            *options,
            *more,
            "--ui-type",
            "none",
            "--artifact-dir",
            str(tmp_path / "found"),
        ],
        tmp_path,
        closed_environment(tmp_path / "home", {"HF_HUB_OFFLINE": "1"}),
    )
    (report,) = (tmp_path / "found").rglob("profile_export_aiperf.json")
    found = json.loads(report.read_text())
    assert found["request_count"]["avg"] == 12
    assert found["output_sequence_length"]["avg"] == 16
    assert not found.get("error_summary")
