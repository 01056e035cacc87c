"""`Aiperf`: the load generator of ai-dynamo, run as a program of its own without a network.

`make aiperf` installs it. It sends whole bodies from a file, so many at a time, and measures: this
module only picks figures out of its report.
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

from .engine_list import ROOT

__all__ = ["AIPERF", "Aiperf", "Limits", "figures_of"]

AIPERF = ROOT / "build/clients/aiperf/bin/aiperf"
_TIMEOUT = 600.0  # seconds of one run
_NOWHERE = "http://127.0.0.1:9"  # nobody listens: what goes anywhere but to this machine fails

_PERCENTILES = {
    "ttft": "time_to_first_token",
    "itl": "inter_token_latency",
    "gap": "inter_chunk_latency",
    "latency": "request_latency",
}
_AVERAGES = {
    "tokens_per_s": "output_token_throughput",
    "requests_per_s": "request_throughput",
    "goodput_per_s": "goodput",
    "requests": "request_count",
    "seconds": "benchmark_duration",
    "prompt_tokens": "total_usage_prompt_tokens",
    "output_tokens": "total_usage_completion_tokens",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request must meet to count in goodput. ttft, itl: milliseconds; itl: mean of it."""

    ttft: float
    itl: float

    def __str__(self) -> str:
        return f"time_to_first_token:{self.ttft:g} inter_token_latency:{self.itl:g}"


@dataclass(frozen=True, slots=True)
class Aiperf:
    """Sends loads to servers. tokenizer: directory of a tokenizer, which it wants to have."""

    tokenizer: Path
    limits: Limits
    program: Path = AIPERF

    def run(
        self, url: str, bodies: Sequence[Mapping[str, Any]], concurrency: int
    ) -> dict[str, float]:
        """Send the bodies in their order, `concurrency` at a time; return figures.

        Raises RuntimeError with its output where a request failed or has no figures.
        """
        with tempfile.TemporaryDirectory(prefix="aiperf-") as made:  # its sockets' paths are short
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
            if not report.exists():
                raise RuntimeError(f"{command} has no report:\n{done.stdout}")
            return figures_of(json.loads(report.read_text()), len(bodies))

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
            "tokenizer": self.tokenizer,
            "goodput": self.limits,
            "random-seed": 1,
            "workers-max": 1,
            "record-processors": 1,
            "ui-type": "none",
            "export-level": "summary",
            "artifact-dir": folder / "found",
        }
        options = [text for name, value in named.items() for text in (f"--{name}", str(value))]
        flags = ["--streaming", "--use-server-token-count"]
        flags += ["--no-server-metrics", "--no-gpu-telemetry"]
        return [str(self.program), "profile", *options, *flags]


def figures_of(report: Mapping[str, Any], count: int) -> dict[str, float]:
    """Return the figures of a report on `count` requests; times in milliseconds.

    Raises RuntimeError where fewer have ended well.
    """
    ended = report.get("request_count", {}).get("avg", 0)
    if ended != count or report.get("error_summary"):
        said = json.dumps(report.get("error_summary"))
        raise RuntimeError(f"{ended:g} of {count} requests ended well: {said}")
    found = {
        f"{name}_{p}_ms": float(report[tag][p])
        for name, tag in _PERCENTILES.items()
        for p in ("p50", "p99")
    }
    return found | {
        name: float(report[tag]["avg"]) for name, tag in _AVERAGES.items() if tag in report
    }


def _closed_environment(folder: Path) -> dict[str, str]:
    """Return an environment without this user's settings, and without a network."""
    both = {"HTTP_PROXY": _NOWHERE, "HTTPS_PROXY": _NOWHERE, "ALL_PROXY": _NOWHERE}
    both["NO_PROXY"] = "127.0.0.1,localhost"
    own = {"HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    lower = {name.lower(): value for name, value in both.items()}
    return {"PATH": os.environ["PATH"], **own, **both, **lower}
