from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from pybatcher import Embedding
from pybatcher.http.base.http_error import HttpError
from pybatcher.http.openai.embeddings import (
    embeddings_body,
    embeddings_json,
    ranked_body,
    read_embeddings,
    read_pairs,
    read_rank,
    similarities,
)


def vector(*numbers: float) -> Embedding:
    return Embedding(np.array(numbers, np.float32), 3, 0)


def test_vectors_have_length_one_also_where_they_are_cut() -> None:
    made = [vector(3.0, 4.0, 12.0), vector(0.0, 0.0, 0.0)]
    told = embeddings_body(made, model="m", as_base64=False, dimensions=2)
    assert told["data"][0]["embedding"] == pytest.approx([0.6, 0.8])
    assert told["data"][1]["embedding"] == [0.0, 0.0]
    assert told["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    coded = embeddings_body(made, model="m", as_base64=True, dimensions=None)
    data = base64.b64decode(coded["data"][0]["embedding"])
    assert np.frombuffer(data, "<f4") == pytest.approx(np.array([3, 4, 12]) / 13)
    with pytest.raises(HttpError, match="dimensions is 4"):
        embeddings_body(made, model="m", as_base64=False, dimensions=4)


@pytest.mark.parametrize("as_base64", [False, True])
def test_the_json_is_that_of_the_body(as_base64: bool) -> None:
    made = [vector(3.0, 4.0, i) for i in range(5)]
    options: dict[str, Any] = {"model": 'a "m', "as_base64": as_base64, "dimensions": 2}
    assert json.loads(embeddings_json(made, **options)) == embeddings_body(made, **options)
    assert json.loads(embeddings_json([], **options)) == embeddings_body([], **options)


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ({}, {}),
        ({"truncate": None, "truncate_prompt_tokens": None}, {}),
        ({"truncate": True}, {"truncate": True}),
        ({"truncate": False}, {"truncate": False}),
        ({"truncate_prompt_tokens": -1}, {"truncate": True}),
        ({"truncate_prompt_tokens": 8, "truncate": True}, {"truncate": 8}),
    ],
)
def test_truncation(body: dict[str, Any], options: dict[str, Any]) -> None:
    assert read_embeddings({"input": "x", **body})[1] == options


@pytest.mark.parametrize(
    "body",
    [{"truncate": 1}, {"truncate": "END"}, {"truncate_prompt_tokens": 0}]
    + [{"truncate_prompt_tokens": value} for value in (-2, True, 1.5, "3", 2**31, 10**30)],
)
def test_truncation_that_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(HttpError) as caught:
        read_embeddings({"input": "x", **body})
    assert caught.value.param in body


def test_cosines_and_ranks() -> None:
    one, other, third = vector(1, 0), vector(0, 2), vector(3, 0)
    assert similarities([one, one], [other, third]) == pytest.approx([0.0, 1.0])
    ranked = ranked_body(["a", "b", "c"], [0.5, 0.9, 0.9], 2, [one], {})
    assert [result["index"] for result in ranked["results"]] == [1, 2]
    assert ranked["results"][0]["document"] == {"text": "b"}
    short = ranked_body(["a"], [0.5], 1, [one], {}, with_documents=False)
    assert short["results"] == [{"index": 0, "relevance_score": 0.5}]


def test_lists_of_pairs() -> None:
    pairs = read_pairs({"text_1": "a", "text_2": ["b", "c"]})
    assert list(pairs.items()) == [("text_1", ["a", "a"]), ("text_2", ["b", "c"])]
    pairs = read_pairs({"documents": ["b"], "queries": ["a"]})
    assert list(pairs.items()) == [("queries", ["a"]), ("documents", ["b"])]
    nothing_said = {"text_1": None, "queries": "a", "text_2": None, "items": ["b"]}
    assert read_pairs(nothing_said) == {"queries": ["a"], "items": ["b"]}
    with pytest.raises(HttpError, match=r"queries is \[\]"):
        read_pairs({"queries": [], "documents": "b"})
    with pytest.raises(HttpError, match=r"documents is 1.*as many texts as queries has: 2"):
        read_pairs({"queries": ["a", "b"], "documents": ["c"]})


@pytest.mark.parametrize(
    ("read", "body", "param"),
    [
        (read_embeddings, {"input": []}, "input"),
        (read_embeddings, {"input": [1.5]}, "input"),
        (read_embeddings, {"input": "a", "encoding_format": "f4"}, "encoding_format"),
        (read_embeddings, {"input": "a", "dimensions": 0}, "dimensions"),
        (read_embeddings, {"input": "a", "dimensions": True}, "dimensions"),
        (read_rank, {"query": 5, "documents": ["a"]}, "query"),
        (read_rank, {"query": "a", "documents": []}, "documents"),
        (read_rank, {"query": "a", "documents": [5]}, "documents[0]"),
        (read_rank, {"query": "a", "documents": ["b"], "top_n": 0}, "top_n"),
    ],
)
def test_what_is_refused(read: Any, body: dict[str, Any], param: str) -> None:
    with pytest.raises(HttpError) as raised:
        read(body)
    assert raised.value.param == param


def test_the_limit_on_texts_is_not_one_on_token_ids() -> None:
    ids = list(range(2049))
    assert read_embeddings({"input": ids})[0] == [ids]
    assert read_pairs({"text_1": ids, "text_2": "b"}) == {"text_1": [ids], "text_2": ["b"]}
    with pytest.raises(HttpError, match="input has 2049 texts"):
        read_embeddings({"input": ["a"] * 2049})
