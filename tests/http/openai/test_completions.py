from __future__ import annotations

from typing import Any

import pytest

from pybatcher import Piece, TokenLogprob
from pybatcher.http.base.http_error import HttpError
from pybatcher.http.openai.completions import completion_chunks, read_completion
from pybatcher.params import OF_MODELS


def test_what_a_body_asks_for() -> None:
    asked = read_completion({"prompt": "Hi"})
    assert (asked.prompts, asked.echo, asked.stream) == (["Hi"], False, False)
    assert asked.options == {"temperature": 1.0, "max_tokens": 16, "of_model": OF_MODELS}
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
    ],
)
def test_what_is_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(HttpError) as raised:
        read_completion(body)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_choices_of_a_prompt_follow_those_of_the_one_before() -> None:
    pieces = [Piece("a", (1,), None, index=1), Piece("b", (2,), None, "stop", index=1)]
    (chunk,) = completion_chunks(pieces, 4, {}, {}, {"id": "x"})  # type: ignore[arg-type]
    assert chunk == {
        "id": "x",
        "choices": [{"index": 5, "text": "ab", "logprobs": None, "finish_reason": "stop"}],
    }


class Texts(dict[int, str]):
    """The texts of tokens: of some they are the same."""


def test_of_tokens_of_one_text_the_likeliest_is_told() -> None:
    texts: Any = Texts({1: "\ufffd", 2: "\ufffd", 3: "c"})
    logprobs = (TokenLogprob(3, -3.0, ((1, -0.5), (2, -1.0))),)
    (chunk,) = completion_chunks([Piece("c", (3,), logprobs)], 0, {0: [7]}, texts, {})
    told = chunk["choices"][0]["logprobs"]
    assert told["top_logprobs"] == [{"\ufffd": -0.5, "c": -3.0}]
    assert told["token_logprobs"] == [-3.0]
    assert told["text_offset"] == [7]


def test_what_an_echoed_prompt_is_scored_for() -> None:
    for more, scores in (
        ({}, None),
        ({"logprobs": 3}, None),
        ({"echo": True}, None),
        ({"echo": True, "logprobs": 0}, 0),
        ({"echo": True, "logprobs": 3}, 3),
        ({"echo": True, "max_tokens": 0}, 0),
        ({"max_tokens": 0, "logprobs": 1}, None),
    ):
        assert read_completion({"prompt": "Hi", **more}).prompt_logprobs == scores
    assert read_completion({"prompt": "Hi"}).add_special_tokens
    assert not read_completion({"prompt": "Hi", "add_special_tokens": False}).add_special_tokens


def test_the_limit_on_prompts_is_not_one_on_token_ids() -> None:
    ids = list(range(2049))
    assert read_completion({"prompt": ids}).prompts == [ids]
    assert len(read_completion({"prompt": ["a"] * 2048}).prompts) == 2048
    for several in (["a"] * 2049, [[5]] * 2049):
        with pytest.raises(HttpError, match="prompt has 2049 prompts"):
            read_completion({"prompt": several})
