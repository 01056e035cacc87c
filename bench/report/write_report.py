"""Write the speed of README.md, the tables of docs/benchmarks.md and the plots, from results.

    .venv/bin/python -m bench.report

Needs matplotlib for the plots (`make bench-tools`); without it they stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common.isa import ISAS
from bench.common.results import RESULTS, read_results
from bench.convert.shapes import DTYPES, SHAPES
from bench.engines.interface import GGUF_TYPES
from bench.report import load_tables, tables
from bench.report.draw import draw_result

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


def put_between_marks(file: Path, lines: Sequence[str]) -> None:
    """Replace the text between the marks of a Markdown file; ends the program if it has none."""
    before, begin, rest = file.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{file.name} has no {BEGIN} ... {END} to write the tables between")
    text = "\n".join(lines)
    file.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def plot(results: dict[str, list[dict[str, Any]]], folder: Path) -> list[str]:
    """Draw the plots of all results; return the names of the files."""
    try:
        from bench.report import plots
    except ImportError as error:
        print(f"no plots: {error}; `make bench-tools` brings it", file=sys.stderr)
        return []
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for shape in dict.fromkeys(result["shape"] for result in results["compare"]):
        of_shape = [r for r in results["compare"] if r["shape"] == shape and r["dtype"] in DTYPES]
        if not of_shape:
            continue
        names.append(f"throughput-{shape}.svg")
        plots.throughput(of_shape, folder / names[-1])
    for result in results["kernels"]:
        names.append(f"roofline-{result['runs'][-1]['target']}.svg")
        plots.roofline(result["runs"][-1], folder / names[-1])
    return names


def main(root: Path = ROOT, folder: Path = RESULTS) -> None:
    def compared(of: Path) -> list[dict[str, Any]]:
        order = {name: i for i, name in enumerate((*SHAPES, *DTYPES, *GGUF_TYPES))}
        found = read_results("compare-*", of)
        return sorted(found, key=lambda r: [order.get(r[key], 99) for key in ("shape", "dtype")])

    kinds = ("serving", "engine", "kernels", "profile", "quality")
    results = {kind: read_results(f"{kind}-*", folder) for kind in kinds}
    results["compare"] = compared(folder)
    if not results["compare"]:
        raise SystemExit("bench/results/ holds no compare-*.json: run `python -m bench.compare`")
    held = {name: made for name in ISAS if (made := compared(folder / name))}
    for name in ISAS:
        results["serving"] += read_results("serving-*", folder / name)
    folder_of_plots = root / "docs" / "plots"
    drawn = plot(results, folder_of_plots)
    loads = {
        kind: read_results(pattern, folder) for kind, (pattern, _) in load_tables.KINDS.items()
    }
    of_loads = [
        draw_result(kind, result, folder_of_plots) for kind in loads for result in loads[kind]
    ]
    first_shape = results["compare"][0]["shape"]
    in_readme = (*DTYPES, "q4_k_m")
    of_first = [
        r for r in results["compare"] if r["shape"] == first_shape and r["dtype"] in in_readme
    ]
    picture = f"throughput-{first_shape}.svg"
    there = picture if (folder_of_plots / picture).exists() else None
    held_first = {
        name: [r for r in made if r["shape"] == first_shape and r["dtype"] in DTYPES]
        for name, made in held.items()
        if name == "avx2"  # most desktops and laptops
    }
    put_between_marks(root / "README.md", tables.summary(of_first, there, held_first))
    lines = tables.everything(results, drawn, held)
    lines += load_tables.sections(loads, [name for name in of_loads if name])
    put_between_marks(root / "docs" / "benchmarks.md", lines)


if __name__ == "__main__":
    main()
