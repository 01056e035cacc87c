"""aiperf against `pybatcher serve`: a short load, of which every request succeeds."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_programs import CLIENTS, Server, closed_environment, run_client


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder for its sockets, whose paths may have 107 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_every_request_succeeds(
    shipped: Server, shipped_model: Path, tmp_path: Path, short: Path
) -> None:
    assert CLIENTS is not None
    counts = {"request-count": 12, "concurrency": 4, "osl": 16, "isl": 32, "random-seed": 7}
    options = [text for name, count in counts.items() for text in (f"--{name}", str(count))]
    where = ["--url", shipped.url, "--model", shipped.model, "--endpoint-type", "chat"]
    more = ["--streaming", "--tokenizer", str(shipped_model), "--extra-inputs", "ignore_eos:true"]
    more += ["--use-server-token-count"]  # texts of a small model are not cut as it wrote them
    said = run_client(
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
        closed_environment(tmp_path / "home", {"TMPDIR": str(short)}),
    )
    report = tmp_path / "found" / "profile_export_aiperf.json"
    assert report.exists(), said  # its status is 0 where it could not begin, too
    found = json.loads(report.read_text())
    assert found["request_count"]["avg"] == 12
    assert found["output_sequence_length"]["avg"] == 16
    assert not found.get("error_summary")
