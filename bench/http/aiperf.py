"""`Aiperf`: the load generator of ai-dynamo, run as a program of its own without a network.

`make aiperf` installs it. It sends bodies from a file with a fixed concurrency, and measures. This
module only reads figures from its report, and counts the requests within limits.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.engines.engine_list import ROOT

__all__ = ["AIPERF", "LIMITS", "Aiperf", "Limits", "figures_of"]

AIPERF = ROOT / "build/clients/aiperf/bin/aiperf"
_TIMEOUT = 600.0  # seconds of one run
_NOWHERE = "http://127.0.0.1:9"  # nothing listens here, so that requests to other machines fail

_PERCENTILES = {
    "ttft": "time_to_first_token",
    "itl": "inter_token_latency",
    "gap": "inter_chunk_latency",
    "latency": "request_latency",
}
_AVERAGES = {
    "tokens_per_s": "output_token_throughput",
    "requests_per_s": "request_throughput",
    "requests": "request_count",
    "seconds": "benchmark_duration",
    "prompt_tokens": "total_usage_prompt_tokens",
    "output_tokens": "total_usage_completion_tokens",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The most milliseconds of a request that counts in goodput. itl: the mean of its gaps."""

    ttft: float
    itl: float

    def are_met(self, metrics: Mapping[str, Any]) -> bool:
        """Return True if a request is within the limits. metrics: the metrics of its record."""
        ttft, itl = (
            metrics[tag]["value"] for tag in ("time_to_first_token", "inter_token_latency")
        )
        return bool(ttft <= self.ttft and itl <= self.itl)


LIMITS = {"interactive": Limits(450.0, 40.0), "server": Limits(2000.0, 200.0)}
"""The limits of MLPerf Inference for Llama 2 70B, in its two scenarios with arriving requests."""


@dataclass(frozen=True, slots=True)
class Aiperf:
    """Sends loads to servers. tokenizer: the directory of a tokenizer, which aiperf needs."""

    tokenizer: Path
    program: Path = AIPERF

    def run(
        self, url: str, bodies: Sequence[Mapping[str, Any]], concurrency: int
    ) -> dict[str, float]:
        """Send the bodies in order with this concurrency; return figures.

        Raises RuntimeError with its output if a request failed or has no figures.
        """
        # Its socket paths must be short.
        with tempfile.TemporaryDirectory(prefix="aiperf-") as made:
            folder = Path(made)
            file = folder / "bodies.jsonl"
            file.write_text("".join(json.dumps(body) + "\n" for body in bodies))
            command = self._command(url, file, len(bodies), concurrency, folder)
            done = subprocess.run(
                command,
                env=_closed_environment(folder),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
            report = folder / "found" / "profile_export_aiperf.json"
            records = folder / "found" / "profile_export.jsonl"
            if not (report.exists() and records.exists()):
                raise RuntimeError(f"{command} has no report:\n{done.stdout}")
            each = [json.loads(line)["metrics"] for line in records.read_text().splitlines()]
            return figures_of(json.loads(report.read_text()), each, len(bodies))

    def _command(
        self, url: str, file: Path, count: int, concurrency: int, folder: Path
    ) -> list[str]:
        named = {
            "url": url,
            "model": "bench",
            "endpoint-type": "chat",
            "input-file": file,
            "custom-dataset-type": "raw_payload",
            "dataset-sampling-strategy": "sequential",
            "request-count": count,
            "concurrency": concurrency,
            # llama.cpp's server can close a connection that is about to be used again.
            "connection-reuse-strategy": "never",
            "tokenizer": self.tokenizer,
            "random-seed": 1,
            "workers-max": 1,
            "record-processors": 1,
            "ui-type": "none",
            "export-level": "records",
            "artifact-dir": folder / "found",
        }
        options = [text for name, value in named.items() for text in (f"--{name}", str(value))]
        flags = ["--streaming", "--use-server-token-count"]
        flags += ["--no-server-metrics", "--no-gpu-telemetry"]
        return [str(self.program), "profile", *options, *flags]


def figures_of(
    report: Mapping[str, Any], records: Sequence[Mapping[str, Any]], count: int
) -> dict[str, float]:
    """Return the figures of a report on `count` requests, with times in milliseconds.

    records: the metrics of each request. Raises RuntimeError if fewer have ended well.
    """
    ended = report.get("request_count", {}).get("avg", 0)
    if ended != count or len(records) != count or report.get("error_summary"):
        said = json.dumps(report.get("error_summary"))
        raise RuntimeError(f"{ended:g} of {count} requests ended well: {said}")
    found = {
        f"{name}_{p}_ms": float(report[tag][p])
        for name, tag in _PERCENTILES.items()
        for p in ("p50", "p99")
    }
    found |= {name: float(report[tag]["avg"]) for name, tag in _AVERAGES.items() if tag in report}
    for name, limits in LIMITS.items():
        n_good = sum(map(limits.are_met, records))
        found[f"good_{name}_per_s"] = found["requests_per_s"] * n_good / count
    return found


def _closed_environment(folder: Path) -> dict[str, str]:
    """Return an environment without this user's settings, and without a network."""
    both = {"HTTP_PROXY": _NOWHERE, "HTTPS_PROXY": _NOWHERE, "ALL_PROXY": _NOWHERE}
    both["NO_PROXY"] = "127.0.0.1,localhost"
    own = {"HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    lower = {name.lower(): value for name, value in both.items()}
    return {"PATH": os.environ["PATH"], **own, **both, **lower}
