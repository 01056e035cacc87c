from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.common.results import read_results
from bench.report import write_report

RUN = {
    "cpu": "A CPU",
    "cpu_flags": ["avx2"],
    "cores": 2,
    "memory_gib": 24,
    "date": "today",
    "commit": "abc",
    "command": "run",
}
OURS = {"name": "pybatcher", "version": "1", "cpu_target": "avx2"}
RIVAL = {"name": "Rival", "version": "2"}
THIRD = {"name": "Third", "version": "3"}


def compared(dtype: str, **others: Any) -> dict[str, Any]:
    names = {"pybatcher": OURS, "rival": RIVAL, "third": THIRD}
    rows = [
        {
            "measure": "prefill 512",
            "median": {"pybatcher": 1234.0, "rival": 20.0, "third": 600.0},
            "ratio": {"rival": 60.0, "third": 2.04},
            "rounds": [[1234, 20, 600]],
        },
        {
            "measure": "decode B=1",
            "median": {"pybatcher": 30.0, "rival": 20.0, "third": 5.0},
            "ratio": {"rival": 1.5, "third": 6.0},
            "rounds": [[30, 20, 5]],
        },
    ]
    subject = {"run": RUN, "shape": "tiny", "dtype": dtype, "threads": 2}
    return {**subject, "contestants": names, "limits": {}, "tok/s": rows} | others


def write(folder: Path, name: str, result: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    for file in ("README.md", "docs/benchmarks.md"):
        text = "before\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n"
        (tmp_path / file).write_text(text)
    return tmp_path


def test_engines_held_to_an_instruction_set_have_rows_of_their_own(root: Path) -> None:
    folder = root / "results"
    write(folder, "compare-tiny-int8", compared("int8"))
    (folder / "avx2").mkdir()
    write(folder / "avx2", "compare-tiny-int4", compared("int4"))
    write(folder / "avx2", "compare-wide-int4", compared("int4", shape="wide"))
    write(folder / "avx2", "compare-tiny-q4_k_m", compared("q4_k_m"))
    write_report.main(root, folder)
    text = (root / "README.md").read_text()
    assert "| tiny int8 | **2.04** | **1.50** |\n| tiny int4, avx2 only | **2.04** |" in text
    assert "wide" not in text
    details = (root / "docs" / "benchmarks.md").read_text()
    assert "### All engines limited to avx2" in details
    assert "| tiny q4_k_m | pybatcher (avx2)" in details
    assert "q4_k_m" not in text
    assert "| wide int4 | pybatcher (avx2) | 1,234 | 30.0 |" in details


def test_captions_name_every_machine_and_both_ends_of_the_time(root: Path) -> None:
    folder = root / "results"
    for i, cpu in enumerate(("A CPU", "B CPU", "A CPU")):
        run = {**RUN, "cpu": cpu, "date": f"day {3 - i}", "commit": f"c{i}"}
        write(folder, f"compare-tiny-{i}", compared(("int8", "bf16", "int4")[i], run=run))
    later = {**RUN, "cpu": "C CPU", "date": "day 4"}
    (folder / "avx2").mkdir()
    write(folder / "avx2", "compare-tiny-int8", compared("int8", run=later))
    write_report.main(root, folder)
    cpus = "2 threads of B CPU and 2 threads of A CPU and 2 threads of C CPU, day 1 to day 4. "
    assert cpus in (root / "README.md").read_text()
    details = (root / "docs" / "benchmarks.md").read_text()
    of_each = "(2 cores, 24 GiB, avx2)"
    assert f"On 2 threads of B CPU {of_each} and 2 threads of A CPU {of_each}, day 1 to day 3, commits c1, c0, c2. Measured" in details  # fmt: skip  # noqa: E501
    assert f"On 2 threads of C CPU {of_each}, day 4, commit abc; `bench/results/avx2`" in details


def test_the_report_goes_between_its_marks(root: Path) -> None:
    folder = root / "results"
    with pytest.raises(SystemExit, match="no compare-"):
        write_report.main(root, folder)
    write(folder, "compare-tiny-int8", compared("int8"))
    for _ in range(2):
        write_report.main(root, folder)
        text = (root / "README.md").read_text()
        assert text.startswith("before\n<!-- bench:begin -->\n## Speed\n\n![Tokens per second of")
        assert "](docs/plots/throughput-tiny.svg)" in text
        assert (root / "docs" / "plots" / "throughput-tiny.svg").is_file()
        assert "the best of Rival, Third, on 2 threads of A CPU, today" in text
        assert "|  | prefill 512 | B=1 |" in text
        assert "| tiny int8 | **2.04** | **1.50** |" in text
        assert text.endswith("<!-- bench:end -->\nafter\n")
        assert "old" not in text
        details = (root / "docs" / "benchmarks.md").read_text()
        assert "figures are medians of the rounds" in details
        assert "| tiny int8 | pybatcher (avx2) | 1,234 | 30.0 |" in details
        assert "|  | ratio to the best rival | **2.04** | **1.50** |" in details
        assert "Third 3." in details
        assert "Measured with `run`." in details
    (root / "README.md").write_text("no marks")
    with pytest.raises(SystemExit, match="README"):
        write_report.main(root, folder)


def test_without_rivals_there_are_no_ratios(root: Path) -> None:
    rows = [
        {
            "measure": "decode B=1",
            "median": {"pybatcher": 30.0},
            "ratio": {},
            "rounds": [[30]],
        }
    ]
    alone = compared("bf16", contestants={"pybatcher": OURS}) | {"tok/s": rows}
    write(root / "results", "compare-tiny-bf16", alone)
    write_report.main(root, root / "results")
    details = (root / "docs" / "benchmarks.md").read_text()
    assert "| tiny bf16 | pybatcher (avx2) | 30.0 |" in details
    assert "best rival" not in details
    text = (root / "README.md").read_text()
    assert "Measured on 2 threads" in text
    assert "ratio" not in text


def test_every_kind_of_result_has_its_table(root: Path) -> None:
    folder = root / "results"
    write(folder, "compare-tiny-int8", compared("int8"))
    figures = {"total_s": 14.8, "itl_p50_s": 0.25, "tokens_per_s": 120.0}
    serving = {"run": RUN, "shape": "tiny", "dtype": "int8", "threads": 2, "load": "shared"}
    serving |= {"n_batch": 256, "contestants": {"pybatcher": OURS}, "rounds": [{}]}
    serving["median"] = {"pybatcher": figures}
    write(folder, "serving-shared", serving)
    write(folder / "avx2", "serving-shared", serving | {"isa": "avx2"})
    product = {"dtype": "int8", "product": "o", "rows": 1, "gb_s": 40.0, "of_read": 0.93}
    product |= {"gop_s": 80.0, "of_peak": 0.04, "peak": "vpdpbusd", "ms": 1.0}
    kernels = {"target": "avx2", "threads": 2, "peak_gop_s": {"vpdpbusd": 2000.0}}
    write(folder, "kernels-a", {"run": RUN, "runs": [kernels | {"products": [product]}]})
    kl = {"mean": 0.00123, "median": 0.001, "p99": 0.01, "same_top": 0.985}
    row = {"contestant": "rival", "dtype": "int4", "kv_dtype": "f32", "target": "", "kl_nats": kl}
    write(folder, "quality-tiny", {"run": RUN, "model": "tiny", "positions": 9, "rows": [row]})
    share = {"products": 0.5, "attention": 0.4, "other": 0.1}
    profile = {"dtype": "int8", "kv_dtype": "bf16", "threads": 2, "sequences": 32, "context": 4096}
    profile |= {"ms": {"total": 98.7}, "share": share}
    write(folder, "profile-tiny", {"run": RUN, "shape": "tiny", "profiles": [profile]})
    engine = compared("int8") | {"engine": OURS | {"kv_dtype": "bf16"}, "peak": "vpdpbusd"}
    engine |= {"bandwidth": {"of_read": 0.91}, "prefill_of_peak": {"512": 0.66}}
    write(folder, "engine-tiny", {"run": RUN, "results": [engine]})
    write_report.main(root, folder)
    text = (root / "docs" / "benchmarks.md").read_text()
    assert "|  | total s | ITL p50 ms | tokens per second |" in text
    assert text.count("| pybatcher (avx2) | 14.8 | 250 | 120 |") == 2
    title = "### Shared prompt: tiny int8"
    assert f"{title}\n" in text
    assert f"{title}, all engines limited to avx2\n" in text
    assert "| 2 | int8 | o | 1 | 40.0 | 93% | 80 | 4% | vpdpbusd |" in text
    assert "| rival | int4 | f32 | 1.23e-03 | 1.00e-03 | 1.00e-02 | 98.5% |" in text
    assert "| int8, KV bf16 | 32 x 4096 | 98.7 | 50.0% | 40.0% | 10.0% |" in text
    assert "| int8, KV bf16, 2 threads | 1,234 | 30.0 | 91% | 66% of vpdpbusd |" in text


def test_results_that_are_in_the_repository_can_be_read() -> None:
    for pattern in ("compare-*", "serving-*", "engine-*"):
        for result in read_results(pattern):
            assert result["run"]["command"]
