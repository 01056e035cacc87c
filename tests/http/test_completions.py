from __future__ import annotations

from typing import Any

import pytest

from pybatcher import Piece
from pybatcher.http.completions import completion_chunks, read_completion
from pybatcher.http.http_error import HttpError


def test_what_a_body_asks_for() -> None:
    asked = read_completion({"prompt": "Hi"})
    assert (asked.prompts, asked.echo, asked.stream) == (["Hi"], False, False)
    assert asked.options == {"temperature": 1.0, "max_tokens": 16}
    for prompt, prompts in (
        ([5, 6], [[5, 6]]),
        (["a", "b"], ["a", "b"]),
        ([[5], [6]], [[5], [6]]),
        (["a", [5]], ["a", [5]]),
    ):
        assert read_completion({"prompt": prompt, "logprobs": 2}).prompts == prompts


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [None]}, "prompt"),
        ({"prompt": "Hi", "logprobs": 21}, "logprobs"),
        ({"prompt": "Hi", "logprobs": "1"}, "logprobs"),
        ({"prompt": "Hi", "suffix": "x"}, "suffix"),
        ({"prompt": "Hi", "best_of": 3}, "best_of"),
        ({"prompt": "Hi", "stream_options": 3}, "stream_options"),
        ({"prompt": "Hi", "echo": True, "stream": True}, "echo"),
    ],
)
def test_what_is_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(HttpError) as raised:
        read_completion(body)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_choices_of_a_prompt_follow_those_of_the_one_before() -> None:
    offsets: dict[int, int] = {}
    pieces = [Piece("a", (1,), None, index=1), Piece("b", (2,), None, "stop", index=1)]
    (chunk,) = completion_chunks(pieces, 4, offsets, {}, {"id": "x"})  # type: ignore[arg-type]
    assert chunk == {
        "id": "x",
        "choices": [{"index": 5, "text": "ab", "logprobs": None, "finish_reason": "stop"}],
    }
    assert offsets == {5: 2}
