"""Published models, with the weights that users have: `make test-real` downloads them.

`make test` does not collect these tests, since they need a package index and 430 MB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest

from pybatcher.loading import open_model
from tests.real.download import GEMMA, MINILM, SMOLLM2

HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("PYBATCHER_REAL_MODELS", ""))
if not os.environ.get("PYBATCHER_REAL_MODELS"):
    collect_ignore_glob = ["test_*.py"]

N_GREEDY = 32

# The last prompt of SmolLM2 is a chat in its own template.
PROMPTS = {
    SMOLLM2: [
        "Once upon a time, in a small village by the sea,",
        "def fibonacci(n):\n",
        "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    ],
    GEMMA: [
        "Once upon a time, in a small village by the sea,",
        "Die Hauptstadt von Frankreich ist",
        "def fibonacci(n):\n",
    ],
}

# The longest has less than 256 tokens, where sentence-transformers would cut it off.
SENTENCES = [
    "A quick brown fox jumps over the lazy dog.",
    "Yes",
    "Zürich, 北京 & naïve café: <tags>, ünïcödé",
    "The ferry to the outer islands leaves at seven in the morning, except on Sundays.",
    "number " * 240,
]

_figures: list[str] = []


class Reference:
    """The process of reference.py, which computes while the other tests run."""

    def __init__(self, process: subprocess.Popen[str], names: list[str]) -> None:
        assert process.stdout is not None
        self._answers: TextIO = process.stdout
        self._process, self._left = process, names
        self._known: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Return the results for a model. Blocks until they are there."""
        while name not in self._known:
            line = self._answers.readline()
            assert line, f"reference.py ended with status {self._process.wait()}"
            self._known[self._left.pop(0)] = json.loads(line)
        return self._known[name]


def encode(name: str, texts: Sequence[str]) -> list[list[int]]:
    backend = open_model(FOLDER / name).tokenizer.backend
    assert backend is not None
    return [backend.encode(text).ids for text in texts]


@pytest.fixture(scope="session")
def text() -> str:
    """A text that no model has read."""
    return (HERE / "text.txt").read_text()


@pytest.fixture(scope="session", autouse=True)
def reference(text: str) -> Iterator[Reference]:
    tasks: list[dict[str, Any]] = [
        {"kind": "embedder", "path": str(FOLDER / MINILM), "texts": SENTENCES}
    ]
    for name, prompts in PROMPTS.items():
        ids = encode(name, [*prompts, text])
        model = {"kind": "language_model", "path": str(FOLDER / name), "n_tokens": N_GREEDY}
        tasks.append({**model, "prompts": ids[:-1], "text": ids[-1]})
    process = subprocess.Popen(
        [sys.executable, str(HERE / "reference.py")],
        env={**os.environ, "PYTHONPATH": str(FOLDER / "libraries"), "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    with process:
        try:
            process.stdin.write(json.dumps(tasks) + "\n")
            process.stdin.flush()
            yield Reference(process, [MINILM, *PROMPTS])
        finally:
            process.kill()


@pytest.fixture
def figures() -> list[str]:
    """Lines that the summary at the end of the run prints."""
    return _figures


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _figures:
        terminalreporter.section("measured figures")
        for line in _figures:
            terminalreporter.write_line(line)
