"""Write the README's speed table from the JSON files in bench/results/.

python -m bench.report
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


def rows(result: dict[str, Any]) -> list[str]:
    """Markdown rows of one file of bench/compare.py."""
    what = f"{result['shape']} {result['dtype']}"
    return [
        f"| {what} | {row['measure']} | {row['pybatcher']:.1f} | {row['rival']:.1f} "
        f"| {row['ratio']:.2f} |"
        for row in result["tok/s"]
    ]


def table(results: list[dict[str, Any]]) -> str:
    """A section: the table and what it was measured on, which is one machine for all results."""
    run = results[0]["run"]
    rival = results[0]["contestants"][1]
    rounds = len(results[0]["tok/s"][0]["rounds"])
    lines = [
        "## Speed",
        "",
        f"Tokens a second, {results[0]['threads']} threads, {run['cpu']} ({run['cores']} cores, "
        f"{run['memory_gib']} GiB), {run['date']}; medians of {rounds} "
        f"rounds in turn with {rival['name']} ({rival['version']}) on the same weights, the ratio "
        "that of neighbouring rounds.",
        "",
        f"| model shape | | pybatcher | {rival['name']} | ratio |",
        "|---|---|---:|---:|---:|",
    ]
    for result in results:
        lines += rows(result)
    commands = sorted({result["run"]["command"] for result in results})
    lines += ["", "Measured with " + ", ".join(f"`{command}`" for command in commands) + "."]
    return "\n".join(lines)


def main() -> None:
    files = sorted((ROOT / "bench" / "results").glob("compare-*.json"))
    if not files:
        raise SystemExit("bench/results/ holds no compare-*.json: run `python -m bench.compare`")
    results = [json.loads(file.read_text()) for file in files]
    readme = ROOT / "README.md"
    before, begin, rest = readme.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md has no {BEGIN} ... {END} to write the table between")
    readme.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}")


if __name__ == "__main__":
    main()
