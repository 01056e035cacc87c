from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.common.slo import Slo
from bench.report import load_tables, write_report
from bench.serving.frontier import summary
from bench.serving.load import figures
from bench.serving.published import PUBLISHED_SCALING, PUBLISHED_TABLE, scaling
from bench.serving.traces import TraceRequest

RUN = {
    "cpu": "A CPU", "cores": 2, "memory_gib": 24, "date": "today", "commit": "abc",
    "command": "run this",
}  # fmt: skip
SUBJECT = {"run": RUN, "shape": "tiny", "dtype": "int8", "threads": 2}


def served() -> dict[str, Any]:
    trace = [TraceRequest(at=0.0, prompt_tokens=4, new_tokens=2)] * 2
    return figures(trace, [[0.5, 0.75], [0.5, 0.75]], Slo())


def one_of_each() -> dict[str, list[dict[str, Any]]]:
    turn = {
        "decode_only_s": 0.1, "itl_p50_s": 0.2, "itl_p99_s": 0.3, "itl_max_s": 0.3,
        "long_ttft_s": 6.0,
    }  # fmt: skip
    no_cap = turn | {"long_ttft_s": 5.0}
    point = summary({"name": "target 2 x", "itl_target_s": 0.25}, [turn], [no_cap])
    cap = summary({"name": "no cap", "max_prefill_tokens": 0}, [no_cap], [no_cap])
    load = {"n_streams": 16, "long_prompt": 4096}
    frontier = SUBJECT | {"load": load, "decode_only_s": 0.1, "points": [cap, point]}
    row = {"policy": "defaults", "rate": 2.0} | served()
    us = {"p50_us": 123.0, "p99_us": 456.0}
    lost = {"preemptions": 3, "recomputed_tokens": 12_345, "computed_tokens": 99_999}
    simulated = row | lost | {"scheduler": {"all": us}}
    cost = {"policy": "defaults", "sequences": 256, "queued": 100_000} | us
    theirs = {"table": PUBLISHED_TABLE, "scaling": scaling(PUBLISHED_SCALING)}
    theirs["tokens_per_s"] = {str(size): speed for size, speed in PUBLISHED_SCALING.items()}
    look = {"at": 60.0, "held": {"rss_mib": 50.0}}
    soak = {"endings": {"a": 1000, "b": 234}, "seconds": 1800.0, "idle_cpu": 0.0, "leaked": []}
    soak |= {"bystander_lag_s": {"p50": 0.0002, "p99": 0.003, "max": 0.02}}
    soak |= {"lag_s": {"p50": 0.0001, "p99": 0.001, "max": 0.01}, "looks": [look], "rss": [(0, 1)]}
    return {
        "frontier": [frontier],
        "load": [SUBJECT | {"load": "chat", "slo": {"ttft": 1.0}, "rows": [row]}],
        "simulation": [
            {"run": RUN, "load": "short", "slo": {}, "rows": [simulated], "costs": SUBJECT}
        ],
        "scheduler-cost": [{"run": RUN, "rows": [cost]}],
        "published": [
            SUBJECT | {"prompt": 32, "published": theirs, "results": [theirs | {"dtype": "f32"}]}
        ],
        "soak": [{"run": RUN} | soak],
    }


def test_every_kind_has_its_section() -> None:
    text = "\n".join(load_tables.sections(one_of_each(), ["soak.svg"]))
    assert "| no cap | 200 | 300 |  | 5.00 | 1.00 |" in text
    assert "| target 2 x | 200 | 300 | 1.20 | 6.00 | 1.20 |" in text
    assert (
        "Goodput is the number of requests per second that met ttft 1 s; 2 threads, today" in text
    )
    assert "| defaults | 2.00 | 0.50 | 0.50 | 250 | 250 | 0.75 | 5.33 | 2.67 | 100.0% |" in text
    assert "| 3 | 12,345 | 123 | 456 |" in text
    assert "| defaults | 256 | 100,000 | 0.123 | 0.456 |" in text
    assert "| published | 143 | 150 | 254 | 30.0 (1.00 x) | 200 (6.67 x) | 350 (11.7 x) |" in text
    assert "| pybatcher f32 |" in text
    assert "| requests | 1,234 in 30 min |" in text
    assert "| ... of an idle process | 0.20, 3.00, 20.0 |" in text
    assert "| leaks and delays | none |" in text
    assert text.count("plots/") == 1
    assert text.count("Measured with `run this`.") == 6


def test_the_report_has_the_sections_and_their_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "results"
    folder.mkdir()
    (tmp_path / "docs").mkdir()
    for file in ("README.md", "docs/benchmarks.md"):
        (tmp_path / file).write_text("<!-- bench:begin -->\n<!-- bench:end -->\n")
    row = {"measure": "decode B=1", "median": {"pybatcher": 30.0}, "ratio": {}, "rounds": [[30]]}
    ours = {"pybatcher": {"name": "pybatcher", "version": "1"}}
    compared = SUBJECT | {"contestants": ours, "tok/s": [row]}
    (folder / "compare-tiny-int8.json").write_text(json.dumps(compared))
    for kind, (result,) in one_of_each().items():
        name = load_tables.KINDS[kind][0].replace("*", "a")
        (folder / f"{name}.json").write_text(json.dumps(result))
    write_report.main(tmp_path, folder)
    text = (tmp_path / "docs" / "benchmarks.md").read_text()
    pictures = {file.name for file in (tmp_path / "docs" / "plots").iterdir()}
    of_loads = {
        "frontier-tiny-int8.svg", "load-chat-tiny-int8.svg", "simulation-short.svg", "soak.svg",
    }  # fmt: skip
    assert of_loads <= pictures
    assert all(f"![{name}](plots/{name})" in text for name in of_loads)
    assert "### Cost of scheduling" in text
