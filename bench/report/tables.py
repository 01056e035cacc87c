"""Markdown tables of results, made from the JSON files alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.common.isa import NATIVE

__all__ = ["commands", "everything", "milliseconds", "number", "summary", "table", "when"]

Result = dict[str, Any]
Lines = list[str]


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> Lines:
    """Return a Markdown table whose first `left` columns are left-aligned."""
    rule = ["---" if i < left else "---:" for i in range(len(header))]
    return ["|" + "|".join(f" {c} " for c in row) + "|" for row in (header, rule, *rows)]


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def milliseconds(seconds: float) -> str:
    return number(seconds * 1e3)


def _machine(result: Result) -> str:
    run = result["run"]
    flags = f", {', '.join(run['cpu_flags'])}" if run.get("cpu_flags") else ""
    of_it = f"{run['cores']} cores, {run['memory_gib']} GiB{flags}"
    return f"{result['threads']} threads of {run['cpu']} ({of_it})"


def _cpu(result: Result) -> str:
    return f"{result['threads']} threads of {result['run']['cpu']}"


def _origin(results: Sequence[Result], machine: Callable[[Result], str]) -> str:
    """Describe all machines of results, and the first and the last date."""
    dates = sorted(result["run"]["date"] for result in results)
    days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return f"{' and '.join(dict.fromkeys(map(machine, results)))}, {days}"


def _commits(results: Sequence[Result]) -> str:
    commits = dict.fromkeys(result["run"]["commit"] for result in results)
    return f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}"


def when(run: Mapping[str, Any], threads: int) -> str:
    """Describe the date and commit of a result."""
    return f"{threads} threads, {run['date']}, commit {run['commit']}"


def commands(results: Iterable[Result]) -> str:
    """Return the commands that made the results."""
    made = dict.fromkeys(result["run"]["command"] for result in results)
    return "Measured with " + ", ".join(f"`{command}`" for command in made) + "."


def _measures(results: Sequence[Result]) -> list[str]:
    """Return the names of all measures, in the order of their first appearance."""
    return list(dict.fromkeys(row["measure"] for r in results for row in r["tok/s"]))


def _best_ratio(row: Result) -> str:
    """Return the ratio to the fastest other engine; ratios were taken round by round."""
    return f"**{min(row['ratio'].values()):.2f}**" if row["ratio"] else ""


def _speed_rows(result: Result, measures: Sequence[str]) -> Iterable[list[str]]:
    by_measure = {row["measure"]: row for row in result["tok/s"]}
    rows = [by_measure.get(measure) for measure in measures]
    title = f"{result['shape']} {result['dtype']}"
    for name in result["contestants"]:
        speeds = [number(row["median"][name]) if row else "" for row in rows]
        yield [title, _full_name(result, name), *speeds]
        title = ""
    if len(result["contestants"]) > 1:
        yield ["", "ratio to the best rival", *(_best_ratio(row) if row else "" for row in rows)]


def _full_name(result: Result, name: str) -> str:
    facts = result["contestants"][name]
    return f"{facts['name']} ({facts['cpu_target']})" if "cpu_target" in facts else facts["name"]


def _versions(results: Sequence[Result]) -> str:
    known = {
        facts["name"]: facts["version"]
        for result in results
        for facts in result["contestants"].values()
    }
    return ", ".join(f"{name} {version}" for name, version in known.items())


def summary(
    results: Sequence[Result], plot: str | None, held: Mapping[str, Sequence[Result]]
) -> Lines:
    """Return the section of the README: a plot, and pybatcher's speed relative to the best other
    engine.

    held: the results of engines that were restricted to an instruction set, by its name.
    """
    measures = _measures(results)
    rivals = dict.fromkeys(
        facts["name"]
        for result in results
        for facts in result["contestants"].values()
        if facts["name"] != "pybatcher"
    )
    lines = ["## Speed", ""]
    if plot is not None:
        title = f"Tokens per second of {', '.join(['pybatcher', *rivals])} by batch size"
        lines += [f"![{title}](docs/plots/{plot})", ""]
    rows = []
    for name, made in {"": results, **held}.items():
        for result in made:
            by_measure = {row["measure"]: row for row in result["tok/s"]}
            ratios = (_best_ratio(by_measure[m]) if m in by_measure else "" for m in measures)
            title = f"{result['shape']} {result['dtype']}"
            rows.append([f"{title}, {name} only" if name else title, *ratios])
    where = _origin([result for made in (results, *held.values()) for result in made], _cpu)
    details = (
        "`bench/results` has the machine and the commit of each row; "
        "[benchmarks](docs/benchmarks.md) has all figures and the method."
    )
    if not rivals:
        return [*lines, f"Measured on {where}. {details}"]
    header = ["", *(m.removeprefix("decode ") for m in measures)]
    return [
        *lines,
        f"Tokens per second as a ratio to the best of {', '.join(rivals)}, on {where}. Prefill "
        "is one prompt; B is the number of sequences in a step. Rows measured with some of them "
        f"are a ratio to the best of those. {details}",
        "",
        *table(header, rows),
        "",
        _absolute(next((r for r in results if r["dtype"] == "int8"), results[0])),
    ]


def _absolute(result: Result) -> str:
    """Return pybatcher's tokens per second in one result, as a sentence."""
    speeds = ", ".join(
        f"{number(row['median']['pybatcher'])} ({row['measure'].removeprefix('decode ')})"
        for row in result["tok/s"]
    )
    name = f"{result['shape']} {result['dtype']}"
    target = result["contestants"]["pybatcher"].get("cpu_target")
    kernels = f" with its {target} kernels" if target else ""
    return f"pybatcher's tokens per second of {name}{kernels} on {_cpu(result)}: {speeds}."


def speed(results: Sequence[Result]) -> Lines:
    """Return the table of tokens per second of all engines, shapes and dtypes."""
    measures = _measures(results)
    rows = [row for result in results for row in _speed_rows(result, measures)]
    header = ["model shape, weights", "", *(m.removeprefix("decode ") for m in measures)]
    return [*table(header, rows, left=2), "", f"{_versions(results)}."]


def _latency_name(figure: str) -> str:
    words = figure.replace("_per_s", " per second").split("_")
    words = [word.upper() if word in ("ttft", "itl") else word for word in words]
    return " ".join([*words[:-1], "ms"] if "ITL" in words else words)


def _latency(figure: str, value: float) -> str:
    """Return a latency in seconds, or in milliseconds for gaps between tokens."""
    return number(value * 1e3 if figure.startswith("itl") else value)


def _serving(results: Sequence[Result]) -> Lines:
    lines: Lines = []
    titles = {
        "shared": "### Shared prompt",
        "mixed": "### Mixed load",
    }
    for result in results:
        medians = result["median"]
        figures = list(next(iter(medians.values())))
        rows = [
            [_full_name(result, name), *(_latency(f, values[f]) for f in figures)]
            for name, values in medians.items()
        ]
        isa = result.get("isa", NATIVE.name)
        held = "" if isa == NATIVE.name else f", all engines limited to {isa}"
        lines += [
            f"{titles[result['load']]}: {result['shape']} {result['dtype']}{held}",
            "",
            f"Steps of at most {result['n_batch']} tokens; medians of {len(result['rounds'])} "
            f"rounds; {when(result['run'], result['threads'])}.",
            "",
            *table(["", *map(_latency_name, figures)], rows),
            "",
            commands([result]),
            "",
        ]
    return lines


def _engine(results: Sequence[Result]) -> Lines:
    lines: Lines = []
    for file in results:
        runs = file["results"]
        measures = _measures(runs)
        rows = []
        for r in runs:
            speeds = {row["measure"]: number(row["median"]["pybatcher"]) for row in r["tok/s"]}
            what = f"{r['dtype']}, KV {r['engine']['kv_dtype']}, {r['threads']} threads"
            largest = list(r["prefill_of_peak"])[-1]
            of_peak = f"{r['prefill_of_peak'][largest]:.0%} of {r['peak']}"
            of_read = f"{r['bandwidth']['of_read']:.0%}"
            rows.append([what, *(speeds.get(m, "") for m in measures), of_read, of_peak])
        header = ["", *measures, "B=1 of reading", "longest prefill of the peak"]
        lines += [
            f"### The engine alone: {runs[0]['shape']}",
            "",
            f"Tokens per second; target {runs[0]['engine']['cpu_target']}, {file['run']['date']}, "
            f"commit {file['run']['commit']}.",
            "",
            *table(header, rows),
            "",
            commands([file]),
            "",
        ]
    return lines


def _profiles(results: Sequence[Result]) -> Lines:
    lines: Lines = []
    for file in results:
        rows = [
            [
                f"{p['dtype']}, KV {p['kv_dtype']}",
                f"{p['sequences']} x {p['context']}",
                f"{p['ms']['total']:.1f}",
                *(f"{share:.1%}" for share in p["share"].values()),
            ]
            for p in file["profiles"]
        ]
        header = ["", "sequences x context", "ms per step", *file["profiles"][0]["share"]]
        lines += [
            f"### Parts of a step's time: {file['shape']}",
            "",
            f"One token per sequence; {when(file['run'], file['profiles'][0]['threads'])}.",
            "",
            *table(header, rows),
            "",
            commands([file]),
            "",
        ]
    return lines


def _kernels(results: Sequence[Result]) -> Lines:
    lines: Lines = []
    for file in results:
        rows = [
            [
                str(run["threads"]),
                p["dtype"],
                p["product"],
                str(p["rows"]),
                f"{p['gb_s']:.1f}",
                f"{p['of_read']:.0%}",
                f"{p['gop_s']:,.0f}",
                f"{p['of_peak']:.0%}",
                p["peak"],
            ]
            for run in file["runs"]
            for p in run["products"]
        ]
        header = ["threads", "weights", "product", "rows", "GB/s", "of reading", "GOP/s", "of peak"]
        lines += [
            f"### Matrix products: {file['runs'][0]['target']}",
            "",
            f"{file['run']['date']}, commit {file['run']['commit']}.",
            "",
            *table([*header, "peak of"], rows, left=3),
            "",
            commands([file]),
            "",
        ]
    return lines


def _quality(results: Sequence[Result]) -> Lines:
    lines: Lines = []
    for file in results:
        rows = []
        for row in file["rows"]:
            kl = row["kl_nats"]
            who = row["contestant"] + (f" ({row['target']})" if row["target"] else "")
            what = [who, row["dtype"], row["kv_dtype"]]
            distances = [f"{kl[name]:.2e}" for name in ("mean", "median", "p99")]
            rows.append([*what, *distances, f"{kl['same_top']:.1%}"])
        header = ["", "weights", "KV", "mean KL", "median KL", "p99 KL", "same first choice"]
        lines += [
            f"### Quality: {file['model']}",
            "",
            f"KL divergence from the f32 weights in nats, over {file['positions']} positions.",
            "",
            *table(header, rows, left=3),
            "",
            commands([file]),
            "",
        ]
    return lines


def _held(held: Mapping[str, Sequence[Result]]) -> Lines:
    lines = []
    for name, made in held.items():
        lines += [
            f"### All engines limited to {name}",
            "",
            *speed(made),
            "",
            f"On {_origin(made, _machine)}, {_commits(made)}; `bench/results/{name}` "
            f"has the machine of each row. {commands(made)}",
            "",
        ]
    return lines


def everything(
    results: Mapping[str, Sequence[Result]],
    plots: Sequence[str],
    held: Mapping[str, Sequence[Result]],
) -> Lines:
    """Return the generated part of docs/benchmarks.md. held: as in `summary`."""
    lines = [
        "## Results",
        "",
        "Tokens per second. All engines run the same weights and take turns; figures are medians "
        "of the rounds, ratios are taken within a round. Prefill is one prompt; B is the number "
        "of sequences in a step.",
        "",
        *speed(results["compare"]),
        "",
        f"On {_origin(results['compare'], _machine)}, {_commits(results['compare'])}. "
        + commands(results["compare"]),
        "",
    ]
    lines += _held(held)
    lines += [line for name in plots for line in (f"![{name}](plots/{name})", "")]
    lines += _serving(results["serving"]) + _engine(results["engine"])
    lines += _profiles(results["profile"]) + _quality(results["quality"])
    return [*lines, *_kernels(results["kernels"])]
