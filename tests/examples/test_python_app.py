from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from serving_doubles import Serving

from pybatcher import BlockingBatcher

QUESTIONS = ["What is 2 plus 3?", "What is the capital of France?", "Tell me about a fox."]


def test_it_tells_asks_and_loses_interest(examples: Path, sidecar: Serving) -> None:
    with BlockingBatcher() as batcher:
        story = batcher.generate("Once upon a time", max_tokens=24).text
        answers = [
            batcher.chat([{"role": "user", "content": question}], max_tokens=32).text.strip()
            for question in QUESTIONS
        ]
    app = examples / "sidecar" / "python_app.py"
    outcome = subprocess.run(
        [sys.executable, "-W", "error", str(app), str(sidecar.socket)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")
    *lines, counts = outcome.stdout.splitlines()
    assert lines == [
        *story.splitlines(),
        *(f"{q} {a}" for q, a in zip(QUESTIONS, answers, strict=True)),
    ]
    assert counts == "== tiny has completed 4"
