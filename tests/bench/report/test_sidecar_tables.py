from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.report import draw as pictures
from bench.report.sidecar_tables import KINDS

RUN = {"date": "2026-11-21 12:00 UTC", "commit": "abc", "cores": 2, "command": "python -m bench"}
BASE: dict[str, Any] = {"run": RUN, "shape": "tiny", "options": {"dtype": "int8", "n_threads": 1}}
TIMES = {"p50": 0.001, "p95": 0.002, "p99": 0.003, "max": 0.004}
SAMPLE = {"at": 60.0, "rss_mib": 50.0, "files": 20, "in_flight": 8, "tokens_in_flight": 1234}
BLOW = {"kind": "SIGSTOP", "at": 1.0, "pause": 2.5, "noticed": 1.5, "start": 0.5, "load": 0.25}
SIDE = {"tokens_per_s": 900.0, "delay_s": TIMES, "cpu_s_per_token": {"caller": 1e-5, "front": 2e-5}}

RESULTS: dict[str, dict[str, Any]] = {
    "sidecar": {
        "rows": [
            {
                "streams": 32,
                "rounds": 4,
                "loss": 0.025,
                "added_delay_s": {"p50": 0.00015, "p99": 0.0004},
                "in_process": SIDE,
                "sidecar": SIDE,
            }
        ]
    },
    "hold": {
        "connections": 256,
        "each": 4,
        "seconds": 600.0,
        "ended": 5000,
        "tokens_per_s": 700.0,
        "front_lag_s": TIMES,
        "bystander_lag_s": TIMES,
        "samples": [SAMPLE],
        "wrong": [],
    },
    "chaos": {
        "streams": 32,
        "rounds": 100,
        "hang_timeout": 2.0,
        "blows": [BLOW | {"replay": 0.25}],
        "wrong": [],
    },
    "hostile": {
        "streams": 4,
        "rows": [
            {
                "kind": "connects",
                "acts": 10_000,
                "undisturbed_itl_s": TIMES,
                "itl_s": TIMES,
                "itl_p99_ratio": 1.05,
                "rss_mib": [50.0, 60.0],
            }
        ],
        "wrong": ["stream 1 is another"],
    },
}
SAID = {
    "sidecar": ("| 32 |", "2.5%", "| 150 |", "10.0, 20.0"),
    "hold": ("256 connections with 4", "5,000, 700", "1.00, 3.00, 4.00", "1,234", "none"),
    "chaos": ("| SIGSTOP | 1 | 2.50 | 2.50 | 1.50 |", "undisturbed run", "hang_timeout = 2 s"),
    "hostile": ("| connects | 10,000 |", "1.05", "stream 1 is another"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_as_a_table(kind: str) -> None:
    _, section = KINDS[kind]
    text = "\n".join(section(BASE | RESULTS[kind]))
    assert "engine threads: 1" in text
    for words in SAID[kind]:
        assert words in text


def test_the_picture_of_held_connections(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert pictures.draw_result("hold", BASE | RESULTS["hold"], tmp_path) == "hold.svg"
    assert (tmp_path / "hold.svg").stat().st_size > 1000


def test_the_plot_of_faults(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    fault = {"kind": "SIGKILL", "at": 0.2, "pause": 0.5}
    result = {"shape": "tiny", "bin_s": 0.1, "tokens_by_bin": [5, 6, 0, 0, 7], "blows": [fault]}
    result["streams"] = 4
    assert pictures.draw_result("chaos", result, tmp_path) == "chaos-tiny.svg"
    assert (tmp_path / "chaos-tiny.svg").stat().st_size > 1000
