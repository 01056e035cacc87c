"""A batch job over a JSONL file that continues where it was killed.

    python examples/batch_job.py QUESTIONS.jsonl ANSWERS.jsonl [MODEL]

A line of the questions is an object with `prompt` or `messages`, and any options of the call, such
as `max_tokens`. Each answer is appended as a line when it comes, with the line number of its
question as `id`. A job that is started again asks only questions without an answer; those whose
line has an `error` are asked again. Neither file is held in memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pybatcher import BlockingBatcher

AT_ONCE = 64  # questions in flight: more than `n_parallel`, so that no row is empty


def answered(path: Path) -> set[int]:
    """Return the ids of answers, and cut off a line that a kill has left incomplete."""
    done: set[int] = set()
    with path.open("a+b") as answers:
        answers.seek(0)
        end = 0
        for line in answers:
            if not line.endswith(b"\n"):
                answers.truncate(end)
                break
            end += len(line)
            answer = json.loads(line)
            if "error" not in answer:
                done.add(answer["id"])
    return done


def questions(path: Path, done: set[int]) -> Iterator[dict[str, Any]]:
    """Yield the questions without an answer."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if number not in done and line.strip():
                yield {**json.loads(line), "id": number}


def main(asked: str, answers: str, model: str | None = None) -> None:
    """Answer the questions that have no answer yet."""
    done = answered(Path(answers))
    n_failed = 0

    def progress(n_results: int, n_items: int | None) -> None:
        print(f"\r{len(done) + n_results} answers", end="", file=sys.stderr)

    with (
        open(answers, "a", encoding="utf-8") as output,
        BlockingBatcher(model) as batcher,
        batcher.map(questions(Path(asked), done), at_once=AT_ONCE, progress=progress) as results,
    ):
        for one in results:
            answer = {"id": one.item["id"]}
            if one.completion is None:
                n_failed += 1
                answer["error"] = str(one.error)
            else:
                answer |= one.completion.to_dict()
            output.write(json.dumps(answer) + "\n")
            output.flush()
    print(f"\n{n_failed} of them failed" if n_failed else "", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
