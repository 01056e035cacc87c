"""The tables of the documents have everything that the code has, and nothing else."""

from __future__ import annotations

import ast
import re
from dataclasses import MISSING, fields
from inspect import getdoc
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from doc_blocks import ROOT

from pybatcher import (
    Batcher,
    BatcherStatistics,
    Completion,
    Health,
    Piece,
    RequestEvent,
    StepEvent,
    Timeline,
)
from pybatcher.cli import COMMANDS
from pybatcher.cli.options import _meanings
from pybatcher.http.application import ROUTES
from pybatcher.metrics import _OF_A_SIDECAR, PREFIX, Metrics
from pybatcher.params import SamplingParams
from pybatcher.params.config import EngineConfig, SchedulerConfig, SupervisionConfig
from pybatcher.sidecar.front.serve_config import ServeConfig
from pybatcher.sidecar.protocol.codecs import METHODS
from pybatcher.sidecar.protocol.wire_errors import _ERRORS

README = ROOT / "README.md"
OPTIONS, SIDECAR, OBSERVABILITY, HTTP = (
    ROOT / "docs" / f"{name}.md" for name in ("options", "sidecar", "observability", "http")
)
LONGEST_README = 150  # lines: read in three minutes


def section(page: Path, heading: str) -> str:
    """The text below a heading."""
    (text,) = re.findall(
        rf"^#+ {heading}$(.*?)(?=^#+ |\Z)", page.read_text(), re.MULTILINE | re.DOTALL
    )
    return text


def first_cells(text: str) -> list[str]:
    """The code words in the first cell of each row."""
    cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize(
    ("page", "heading", "owner"),
    [
        (OPTIONS, "Engine", EngineConfig),
        (OPTIONS, "Scheduler", SchedulerConfig),
        (OPTIONS, "Supervision", SupervisionConfig),
        (OPTIONS, "Sampling", SamplingParams),
        (SIDECAR, "Options", ServeConfig),
    ],
)
def test_every_option_is_there_with_its_default(page: Path, heading: str, owner: type) -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| `([^`]*)` \| (.{10,}) \|$", section(page, heading), re.MULTILINE
    )
    table = {name: ast.literal_eval(default) for name, default, _ in rows}
    defaults = {field.name: field.default for field in fields(owner)}
    assert MISSING not in defaults.values()
    assert len(rows) == len(table)
    assert table == defaults


def test_every_environment_variable_is_there() -> None:
    sources = [*(ROOT / "pybatcher").rglob("*.py"), *(ROOT / "csrc").rglob("*.cc")]
    read = {
        name for file in sources for name in re.findall(r'"(PYBATCHER_[A-Z_]+)"', file.read_text())
    }
    told = first_cells(section(OPTIONS, "Environment variables"))
    assert "PYBATCHER_CPU_TARGET" in read
    assert {name for name in told if name.startswith("PYBATCHER_")} == read


def test_every_count_and_every_status_is_there() -> None:
    text = section(OBSERVABILITY, "Statistics and health")
    counts, _, statuses = text.partition("`health().status`")
    assert sorted(first_cells(counts)) == sorted(f.name for f in fields(BatcherStatistics))
    status = get_type_hints(Health)["status"]
    assert sorted(first_cells(statuses)) == sorted(get_args(status))


def test_every_metric_is_there() -> None:
    metrics = Metrics(Batcher())
    of_a_sidecar = [metrics._family(PREFIX + one.name, one, None) for one in _OF_A_SIDECAR]
    described = [*metrics.describe(), *of_a_sidecar]
    names = {
        metric.name + ("_total" if metric.type == "counter" else ""): metric.type
        for metric in described
    }
    rows = re.findall(
        r"^\| `(pybatcher:\w+)` \| (\w+) \| .+ \|$",
        section(OBSERVABILITY, "Prometheus"),
        re.MULTILINE,
    )
    also = {name for name in names if name.startswith("vllm:")}
    assert dict(rows) == {name: kind for name, kind in names.items() if name not in also}
    assert len(rows) == len(names) - len(also)
    told = re.findall(r"`(vllm:\w+)`", section(OBSERVABILITY, "Prometheus"))
    assert sorted(told) == sorted(also)


def test_every_method_of_the_sidecar_is_there() -> None:
    methods, _, _ = section(SIDECAR, "Methods").partition("`opts` are")
    of_connections = {"generate", "chat", "cancel", "aside", "hello", "watch"}
    assert sorted(first_cells(methods)) == sorted({*METHODS, *of_connections})


def test_every_endpoint_is_there() -> None:
    told = set()
    for cells in re.findall(r"^\| (`(?:GET|POST) .*?) \|", section(HTTP, "Requests"), re.MULTILINE):
        method, _, first = cells.strip("`").partition(" ")
        told |= {(path, method) for path in first.replace("`", "").split(", ")}
    served = {(path.replace(":path}", "}"), method) for path, method, _ in ROUTES}
    assert told == served


def test_every_code_of_an_error_is_there() -> None:
    told = first_cells(section(SIDECAR, "Errors"))
    assert sorted(told) == sorted({error.code for error in _ERRORS})


def test_every_command_is_in_the_readme() -> None:
    commands = set(COMMANDS)
    (row,) = re.findall(r"^\| the command line \| (.*) \|$", README.read_text(), re.MULTILINE)
    assert set(re.findall(r"`(?:pybatcher )?(\w+)`", row)) == commands


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) < LONGEST_README


@pytest.mark.parametrize(
    "kind", [BatcherStatistics, Completion, Piece, RequestEvent, StepEvent, Timeline]
)
def test_every_field_is_in_the_docstring(kind: type) -> None:
    described = getdoc(kind) or ""
    names = {field.name for field in fields(kind)} - {"other_choices", "parse"}  # not for users
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", described)] == []


def test_every_option_of_the_command_line_has_words_of_its_own() -> None:
    meanings = _meanings(SamplingParams)
    assert len(set(meanings.values())) == len(meanings)
    assert "None (only from Python)" in _meanings(SupervisionConfig)["step_timeout"]
    assert '"off" (from Python also False)' in _meanings(EngineConfig)["weights_cache"]
