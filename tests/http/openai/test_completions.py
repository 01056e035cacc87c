from __future__ import annotations

from typing import Any

import pytest

from pybatcher import Piece, TokenLogprob
from pybatcher.http.base.http_error import HttpError
from pybatcher.http.base.token_texts import TokenTexts
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
        ({"prompt": ["Hi"] * 33, "n": 64}, "n"),
        ({"prompt": "Hi", "stream_options": 3}, "stream_options"),
    ],
)
def test_what_is_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(HttpError) as raised:
        read_completion(body)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_the_outputs_of_all_prompts_are_limited() -> None:
    assert len(read_completion({"prompt": ["Hi"] * 32, "n": 64}).prompts) == 32
    with pytest.raises(HttpError, match=r"n is 64, for each of 1000 prompts; .* at most 2048"):
        read_completion({"prompt": ["Hi"] * 1000, "n": 64})


def test_choices_of_a_prompt_follow_those_of_the_one_before() -> None:
    pieces = [Piece("a", (1,), None, index=1), Piece("b", (2,), None, "stop", index=1)]
    (chunk,) = completion_chunks(pieces, 4, {}, {}, {"id": "x"})  # type: ignore[arg-type]
    assert chunk == {
        "id": "x",
        "choices": [{"index": 5, "text": "ab", "logprobs": None, "finish_reason": "stop"}],
    }


class Texts(TokenTexts):
    """Tokens of these bytes, some of which are the same."""

    def __init__(self, *tokens: bytes) -> None:
        self._bytes = dict(enumerate(tokens))


@pytest.mark.parametrize(
    ("drawn", "top", "expected"),
    [
        (
            (3, -3.0),
            ((0, -0.5), (1, -1.0)),
            {r"bytes:\xf0\x9f": -0.5, r"bytes: \xf0": -1.0, "c": -3.0},
        ),
        # the token keeps its text, by which clients find it; of the others, the likeliest has it
        ((3, -3.0), ((2, -0.5), (4, -1.0)), {"token_id:2": -0.5, "token_id:4": -1.0, "c": -3.0}),
        ((3, -1.0), ((2, -0.5), (3, -1.0)), {"token_id:2": -0.5, "c": -1.0}),
        (
            (0, -3.0),
            ((2, -0.5), (3, -1.0)),
            {"c": -0.5, "token_id:3": -1.0, r"bytes:\xf0\x9f": -3.0},
        ),
        (
            (5, -3.0),
            ((0, -0.5), (6, -1.0)),
            {r"bytes:\xf0\x9f": -0.5, "": -3.0, "token_id:6": -1.0},
        ),
    ],
)
def test_all_alternatives_are_told_if_several_have_one_text(
    drawn: tuple[int, float], top: Any, expected: dict[str, float]
) -> None:
    texts = Texts(b"\xf0\x9f", b" \xf0", b"c", b"c", b"c", b"", b"")
    logprobs = (TokenLogprob(*drawn, top),)
    (chunk,) = completion_chunks([Piece("c", (drawn[0],), logprobs)], 0, {0: [7]}, texts, {})
    told = chunk["choices"][0]["logprobs"]
    assert told["top_logprobs"] == [expected]
    assert told["tokens"][0] in expected
    assert told["token_logprobs"] == [drawn[1]]
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
