"""A batch job that is killed, and started again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pybatcher import BlockingBatcher

PATIENCE = 60.0
QUESTIONS: list[dict[str, Any]] = [
    *({"prompt": f"Once upon a time there were {i}", "max_tokens": 12} for i in range(30)),
    {"messages": [{"role": "user", "content": "What is 2 plus 3?"}], "max_tokens": 12},
    {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True},
]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    asked, answers = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    asked.write_text("\n".join(map(json.dumps, QUESTIONS)) + "\n\n")
    return asked, answers


def start(examples: Path, asked: Path, answers: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(examples / "batch_job.py"), str(asked), str(answers)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def finished(job: subprocess.Popen[str]) -> str:
    with job:
        assert job.stderr is not None
        told = job.stderr.read()
    assert job.returncode == 0, told
    return told


def lines_of(answers: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answers.read_text().splitlines()]


def test_a_job_that_is_killed_continues(examples: Path, files: tuple[Path, Path]) -> None:
    asked, answers = files
    with start(examples, asked, answers) as job:
        deadline = time.monotonic() + PATIENCE
        while not answers.exists() or answers.read_text().count("\n") < 3:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        job.kill()
    kept = answers.read_text().rpartition("\n")[0].splitlines()
    assert 3 <= len(kept) <= len(QUESTIONS)
    with answers.open("a") as output:
        output.write('{"id": 5, "text": "of a line that was cu')
    finished(start(examples, asked, answers))
    found = lines_of(answers)
    assert answers.read_text().splitlines()[: len(kept)] == kept, (
        "what there was is not asked again"
    )
    assert sorted(one["id"] for one in found) == list(range(1, len(QUESTIONS) + 1))
    before = answers.stat().st_size
    assert "32 answers" not in finished(start(examples, asked, answers)), "nothing is left to do"
    assert answers.stat().st_size == before
    with BlockingBatcher() as batcher:
        for one in found[:3]:
            question = dict(QUESTIONS[one["id"] - 1])
            call = batcher.chat if "messages" in question else batcher.generate
            content = question.pop("messages", None) or question.pop("prompt")
            assert one["text"] == call(content, **question).text


def test_what_failed_is_asked_again(examples: Path, files: tuple[Path, Path]) -> None:
    asked, answers = files
    asked.write_text('{"prompt": "", "max_tokens": 2}\n{"prompt": "Once", "max_tokens": 2}\n')
    assert "1 of them failed" in finished(start(examples, asked, answers))
    errors = {one["id"]: "error" in one for one in lines_of(answers)}
    assert errors == {1: True, 2: False}
    asked.write_text('{"prompt": "A", "max_tokens": 2}\n{"prompt": "Once", "max_tokens": 2}\n')
    finished(start(examples, asked, answers))
    assert sorted((one["id"], "error" in one) for one in lines_of(answers)) == [
        *((1, False), (1, True), (2, False))
    ]
