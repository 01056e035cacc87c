"""Markdown tables of loads, simulations and soaks, made from the JSON files alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.report import sidecar_tables
from bench.report.draw import picture_name
from bench.report.tables import commands, number, table, when
from bench.report.tables import milliseconds as _ms

__all__ = ["KINDS", "sections"]

Result = dict[str, Any]
Lines = list[str]


def _frontier(result: Result) -> Lines:
    load = result["load"]
    rows = [
        [
            point["name"],
            _ms(point["itl_p50_s"]),
            _ms(point["itl_p99_s"]),
            number(point["itl_p99_to_target"]) if "itl_p99_to_target" in point else "",
            number(point["long_ttft_s"]),
            number(point["long_ttft_to_no_cap"]),
        ]
        for point in result["points"]
    ]
    header = ["", "ITL p50 ms", "ITL p99 ms", "of the target", "long TTFT s", "to no cap"]
    return [
        f"### TTFT against ITL: {result['shape']} {result['dtype']}",
        "",
        f"{load['n_streams']} streams, and a prompt of {load['long_prompt']} tokens among them. A "
        "cap is `max_prefill_tokens`; a target is `itl_target`, in steps that only decode "
        f"({_ms(result['decode_only_s'])} ms). Medians of {len(result['points'][0]['rounds'])} "
        f"rounds; {when(result['run'], result['threads'])}.",
        "",
        *table(header, rows),
    ]


_SERVED_HEADER = ["TTFT p50 s", "p99", "ITL p50 ms", "p99", "E2E p99 s", "tok/s", "goodput", "met"]


def _served(row: Result) -> list[str]:
    return [
        number(row["ttft_s"]["p50"]),
        number(row["ttft_s"]["p99"]),
        _ms(row["itl_s"]["p50"]),
        _ms(row["itl_s"]["p99"]),
        number(row["e2e_s"]["p99"]),
        number(row["tokens_per_s"]),
        number(row["goodput_per_s"]),
        f"{row['met']:.1%}",
    ]


def _slo(result: Result) -> str:
    limits = ", ".join(f"{name} {limit:g} s" for name, limit in result["slo"].items())
    return f"Goodput is the number of requests per second that met {limits or 'any time'}"


def _load(result: Result) -> Lines:
    rows = [[row["policy"], number(row["rate"]), *_served(row)] for row in result["rows"]]
    return [
        f"### Requests as they come, {result['load']}: {result['shape']} {result['dtype']}",
        "",
        f"{_slo(result)}; {when(result['run'], result['threads'])}.",
        "",
        *table(["", "requests per second", *_SERVED_HEADER], rows),
    ]


def _simulation(result: Result) -> Lines:
    rows = [
        [
            row["policy"],
            *_served(row),
            f"{row['preemptions']:,}",
            f"{row['recomputed_tokens']:,}",
            number(row["scheduler"]["all"]["p50_us"]),
            number(row["scheduler"]["all"]["p99_us"]),
        ]
        for row in result["rows"]
    ]
    costs, run = result["costs"], result["run"]
    header = [*_SERVED_HEADER, "preempted", "recomputed", "plan + apply p50 us", "p99"]
    return [
        f"### Policies in virtual time: {result['load']}",
        "",
        f"{result['rows'][0]['requests']:,} requests; step times are those of "
        f"{costs['shape']} {costs['dtype']}. {_slo(result)}. {run['date']}, commit "
        f"{run['commit']}.",
        "",
        *table(["", *header], rows),
    ]


def _scheduler_cost(result: Result) -> Lines:
    rows = [
        [
            row["policy"],
            str(row["sequences"]),
            f"{row['queued']:,}",
            f"{row['p50_us'] / 1e3:.3f}",
            f"{row['p99_us'] / 1e3:.3f}",
        ]
        for row in result["rows"]
    ]
    return [
        "### Cost of scheduling",
        "",
        f"`plan` and `apply` of one step; {result['run']['date']}, commit "
        f"{result['run']['commit']}.",
        "",
        *table(["", "sequences", "queued", "p50 ms", "p99 ms"], rows),
    ]


def _published(result: Result) -> Lines:
    theirs = result["published"]

    def row(name: str, of: Mapping[str, Any]) -> list[str]:
        shown = of["table"]
        times = [_ms(shown["ttft_p50_s"]), _ms(shown["itl_p99_s"]), number(shown["tokens_per_s"])]
        speeds = (f"{number(s)} ({number(of['scaling'][n])} x)" for n, s in
                  of["tokens_per_s"].items())  # fmt: skip
        return [name, *times, *speeds]

    rows = [row("published", theirs)]
    rows += [row(f"pybatcher {found['dtype']}", found) for found in result["results"]]
    header = ["TTFT p50 ms", "ITL p99 ms", "tok/s"]
    header += [f"B={size} tok/s" for size in theirs["tokens_per_s"]]
    return [
        f"### Compared with published figures: {result['shape']}",
        "",
        "TTFT, ITL and throughput: 32 prompts at once, 8 tokens each (RoseLLM; prompts of "
        f"{result['prompt']} tokens here). B: number of decoding sequences, and the speed "
        "relative to one sequence (ADR 005 of the Elixir batcher, for another model and machine). "
        f"{when(result['run'], result['threads'])}.",
        "",
        *table(["", *header], rows),
    ]


def _soak(result: Result) -> Lines:
    lag, looks = result["lag_s"], result["looks"]
    beside = [result["bystander_lag_s"][name] for name in ("p50", "p99", "max")]
    rows = [
        ["requests", f"{sum(result['endings'].values()):,} in {result['seconds'] / 60:.0f} min"],
        ["loop lag p50, p99, max ms", ", ".join(_ms(lag[name]) for name in ("p50", "p99", "max"))],
        ["... of an idle process", ", ".join(map(_ms, beside))],
        ["idle, of a core", f"{result['idle_cpu']:.2%}"],
        [
            "memory, first and last pause, MiB",
            f"{looks[0]['held']['rss_mib']:.1f}, {looks[-1]['held']['rss_mib']:.1f}",
        ],
        ["leaks and delays", "; ".join(result["leaked"]) or "none"],
    ]
    run = result["run"]
    return [
        "### Soak",
        "",
        f"Clients of all kinds, on the shipped model; {run['date']}, commit {run['commit']}.",
        "",
        *table(["", ""], rows),
    ]


KINDS: dict[str, tuple[str, Callable[[Result], Lines]]] = {
    "frontier": ("frontier-*", _frontier),
    "load": ("load-*", _load),
    "simulation": ("simulation-*", _simulation),
    "scheduler-cost": ("scheduler-cost", _scheduler_cost),
    "published": ("published-*", _published),
    "soak": ("soak", _soak),
    **sidecar_tables.KINDS,
}
"""The name pattern of the files and the function for one section, by kind of result."""


def sections(results: Mapping[str, Sequence[Result]], drawn: Sequence[str]) -> Lines:
    """Return one section per result, with its plot if it has one."""
    lines: Lines = []
    for kind, (_, section) in KINDS.items():
        for result in results.get(kind, ()):
            lines += [*section(result), ""]
            name = picture_name(kind, result)
            if name in drawn:
                lines += [f"![{name}](plots/{name})", ""]
            lines += [commands([result]), ""]
    return lines
