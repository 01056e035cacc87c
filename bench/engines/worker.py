"""A process that holds one engine and measures on request.

    python -m bench.worker pybatcher_engine CHECKPOINT SETTINGS

Reads one JSON object a line ({"call": "prefill", ...}), answers each with one line, and ends with
its input. `Worker` is the client: it starts such a process and sends it calls.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.engines.engine_list import ROOT
from bench.engines.interface import Arrival, Server, Settings, SteppedEngine, random_tokens

__all__ = ["Worker", "answer"]


class Worker:
    """An engine in a process and a virtual environment of its own."""

    def __init__(
        self,
        name: str,
        python: Path,
        module: str,
        checkpoint: Path,
        settings: Settings,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        command = [str(python), "-m", "bench.engines.worker", module, str(checkpoint.resolve())]
        self._process = subprocess.Popen(
            [*command, json.dumps(asdict(settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | dict(environment or {}),
        )

    def ask(self, call: str, **arguments: Any) -> Any:
        """Send a call and return its result. Raises RuntimeError if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"call": call} | arguments) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker of {self.name} ended with {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process and wait for it, which frees its memory."""
        self._process.communicate()


def answer(engine: SteppedEngine | Server, request: dict[str, Any]) -> Any:
    """Carry out one request. `serve` needs a Server; the measuring calls need a SteppedEngine."""
    engine_: Any = engine
    match request["call"]:
        case "facts":
            return engine_.facts()
        case "serve":
            return engine_.serve([Arrival(**arrival) for arrival in request["arrivals"]])
        case "last_logits":
            return engine_.last_logits(random_tokens(request["n_tokens"], seed=0)).tolist()
        case "logits":
            np.save(request["path"], engine_.logits(request["sequences"]))
            return request["path"]
        case "prefill":
            return engine_.prefill(random_tokens(request["n_tokens"], seed=request.get("seed", 1)))
        case "extend":
            first, count = request["first"], request["count"]
            tokens = request["n_tokens"]
            prompts = [random_tokens(tokens, seed=2 + i) for i in range(first, first + count)]
            return engine_.extend(prompts)
        case "steps":
            return engine_.steps(request["count"])
        case "clear":
            return engine_.clear()
        case unknown:
            raise ValueError(f"call is {unknown!r}, which no engine answers")


def main() -> None:
    module_name, checkpoint, settings = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of native libraries must not mix with the answers
    module = importlib.import_module(f"bench.engines.{module_name}")
    open_engine = getattr(module, "open_engine", None) or module.open_server
    engine = open_engine(Path(checkpoint), Settings(**json.loads(settings)))
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line))), file=answers, flush=True)
    engine.close()


if __name__ == "__main__":
    main()
