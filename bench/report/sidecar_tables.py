"""Markdown tables of sidecar benchmarks, made from the JSON files alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from bench.report.tables import milliseconds, number, table

__all__ = ["KINDS"]

Result = dict[str, Any]
Lines = list[str]


def _on(result: Result) -> str:
    threads = result["options"].get("n_threads", result["run"]["cores"])
    run = result["run"]
    return f"engine threads: {threads}; {run['date']}, commit {run['commit']}"


def _us(seconds: float) -> str:
    return number(seconds * 1e6)


def _sidecar(result: Result) -> Lines:
    rows = []
    for row in result["rows"]:
        local, remote, added = row["in_process"], row["sidecar"], row["added_delay_s"]
        cpu = remote["cpu_s_per_token"]
        rows.append(
            [
                str(row["streams"]),
                number(local["tokens_per_s"]),
                number(remote["tokens_per_s"]),
                f"{row['loss']:.1%}",
                _us(local["delay_s"]["p50"]),
                _us(remote["delay_s"]["p50"]),
                _us(added["p50"]),
                _us(added["p99"]),
                ", ".join(_us(cpu[name]) for name in ("caller", "front")),
            ]
        )
    header = [
        "streams", "in process tok/s", "sidecar tok/s", "loss", "delay p50 us", "sidecar p50",
        "added p50", "added p99", "CPU per token us: caller, front",
    ]  # fmt: skip
    return [
        f"### Sidecar overhead: {result['shape']} {result['options'].get('dtype', '')}",
        "",
        "In process and over the sidecar in turns, medians of "
        f"{result['rows'][0]['rounds']} rounds. "
        "The delay of a token is the time from its stamp until the caller has it; "
        f"{_on(result)}.",
        "",
        *table(header, rows),
    ]


def _hold(result: Result) -> Lines:
    def times(lag: Result) -> str:
        return ", ".join(milliseconds(lag[name]) for name in ("p50", "p99", "max"))

    samples = result["samples"]
    rss = [sample["rss_mib"] for sample in samples]
    rows = [
        ["finished requests, tokens per second",
         f"{result['ended']:,}, {number(result['tokens_per_s'])}"],
        ["the front's loop lag p50, p99, max ms", times(result["front_lag_s"])],
        ["... of an idle process", times(result["bystander_lag_s"])],
        ["the front's memory, first, last, highest MiB",
         f"{rss[0]:.1f}, {rss[-1]:.1f}, {max(rss):.1f}"],
        ["most tokens in flight", f"{max(s['tokens_in_flight'] for s in samples):,}"],
        ["the front's descriptors, first and last",
         f"{samples[0]['files']}, {samples[-1]['files']}"],
        ["failures, growth and delays", "; ".join(result["wrong"]) or "none"],
    ]  # fmt: skip
    return [
        f"### Connections held: {result['shape']}",
        "",
        f"{result['connections']} connections with {result['each']} requests in flight each, for "
        f"{result['seconds'] / 60:.0f} min; {_on(result)}.",
        "",
        *table(["", ""], rows),
    ]


def _chaos(result: Result) -> Lines:
    rows = []
    for kind in dict.fromkeys(fault["kind"] for fault in result["blows"]):
        faults = [fault for fault in result["blows"] if fault["kind"] == kind]
        parts = ("pause", "noticed", "start", "load", "replay")
        medians = [number(statistics.median(b[part] for b in faults)) for part in parts]
        longest = number(max(fault["pause"] for fault in faults))
        rows.append([kind, str(len(faults)), medians[0], longest, *medians[1:]])
    as_undisturbed = "; ".join(dict.fromkeys(result["wrong"])) or (
        "each had the tokens of an undisturbed run"
    )
    header = ["", "times", "pause p50 s", "longest", "detection p50 s", "start", "load", "replay"]
    return [
        f"### Faults in the worker: {result['shape']}",
        "",
        f"{result['streams']} streams at a time, greedy and sampled, {result['rounds']:,} in all: "
        f"{as_undisturbed}. A hung worker is detected after "
        f"hang_timeout = {result['hang_timeout']:g} s; {_on(result)}.",
        "",
        *table(header, rows),
    ]


def _hostile(result: Result) -> Lines:
    rows = [
        [
            row["kind"],
            f"{row['acts']:,}",
            milliseconds(row["undisturbed_itl_s"]["p50"]),
            milliseconds(row["itl_s"]["p50"]),
            milliseconds(row["undisturbed_itl_s"]["p99"]),
            milliseconds(row["itl_s"]["p99"]),
            number(row["itl_p99_ratio"]),
            f"{row['rss_mib'][1]:.1f}",
        ]
        for row in result["rows"]
    ]
    header = [
        "", "actions", "ITL p50 ms", "attacked", "ITL p99 ms", "attacked", "ratio",
        "front MiB after",
    ]  # fmt: skip
    return [
        f"### Hostile clients: {result['shape']}",
        "",
        f"The effect of attackers on a client with {result['streams']} streams. Failures: "
        f"{'; '.join(result['wrong']) or 'none'}; {_on(result)}.",
        "",
        *table(header, rows),
    ]


KINDS: dict[str, tuple[str, Callable[[Result], Lines]]] = {
    "sidecar": ("sidecar-*", _sidecar),
    "hold": ("hold", _hold),
    "chaos": ("chaos-*", _chaos),
    "hostile": ("hostile", _hostile),
}
"""The name pattern of the files and the function for one section, by kind of result."""
