"""A process that holds one contestant and measures when told to.

    python -m bench.worker pybatcher_engine CHECKPOINT SETTINGS

Reads one JSON object a line ({"call": "prefill", ...}) and answers each with one; ends with its
input. `Worker` is the other side: it starts such a process and asks it.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .contestants.contestant import Contestant, Settings, random_tokens

__all__ = ["Worker", "answer"]


class Worker:
    """A contestant in a process and a virtual environment of its own."""

    def __init__(self, python: Path, contestant: str, checkpoint: Path, settings: Settings) -> None:
        command = [str(python), "-m", "bench.worker", contestant, str(checkpoint)]
        self._process = subprocess.Popen(
            [*command, json.dumps(asdict(settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, call: str, **arguments: Any) -> Any:
        """What `answer` gives there; RuntimeError when the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"call": call} | arguments) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended with status {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def answer(contestant: Contestant, request: dict[str, Any]) -> Any:
    """Carry out one request: facts, logits, prefill or decode."""
    match request["call"]:
        case "facts":
            return contestant.facts()
        case "logits":
            return contestant.logits(random_tokens(request["n_tokens"], seed=0)).tolist()
        case "prefill":
            return contestant.prefill(random_tokens(request["n_tokens"], seed=1))
        case "decode":
            prompts = [
                random_tokens(request["n_tokens"], seed=2 + i)
                for i in range(request["n_sequences"])
            ]
            return contestant.decode(prompts, request["steps"])
        case unknown:
            raise ValueError(f"call is {unknown!r}; it must be facts, logits, prefill or decode")


def main() -> None:
    contestant_name, checkpoint, settings = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a native library prints must not land among the answers
    module = importlib.import_module(f"bench.contestants.{contestant_name}")
    contestant = module.open_contestant(Path(checkpoint), Settings(**json.loads(settings)))
    for line in sys.stdin:
        print(json.dumps(answer(contestant, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
