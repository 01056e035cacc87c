"""Reads requests and writes responses of embeddings, scores and reranking. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...calls.scores import Embedding
from ..base.http_error import HttpError
from ..base.list_response import list_json
from ..base.sampling_fields import bad

__all__ = [
    "embeddings_body",
    "embeddings_json",
    "pairs_body",
    "ranked_body",
    "read_document_truncation",
    "read_embeddings",
    "read_pairs",
    "read_rank",
    "read_truncation",
    "similarities",
]

Texts = list[str | list[int]]

_MOST = 2048


def read_embeddings(body: Mapping[str, Any]) -> tuple[Texts, dict[str, Any], bool, int | None]:
    """Return the texts, the options of `embed`, whether vectors are base64, and their size."""
    encoding = body.get("encoding_format")
    encoding = "float" if encoding is None else encoding
    if encoding not in ("float", "base64"):
        raise bad("encoding_format", encoding, "'float' or 'base64'")
    dimensions = body.get("dimensions")
    is_whole = isinstance(dimensions, int) and not isinstance(dimensions, bool)
    if dimensions is not None and not (is_whole and dimensions >= 1):
        raise bad("dimensions", dimensions, "a whole number, 1 or more")
    pooling = body.get("pooling")
    options = read_truncation(body)
    if pooling is not None:
        options["pooling"] = pooling
    return _texts(body.get("input"), "input"), options, encoding == "base64", dimensions


def read_truncation(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option `truncate` of `embed`, if the body names it.

    vLLM has `truncate_prompt_tokens`, the most tokens of a text (-1: those that fit); text
    embeddings inference and Ollama have `truncate`, a truth value.
    """
    most, cuts = body.get("truncate_prompt_tokens"), body.get("truncate")
    is_whole = isinstance(most, int) and not isinstance(most, bool)
    if most is not None and not (is_whole and (most == -1 or 1 <= most < 2**31)):
        raise bad("truncate_prompt_tokens", most, "a whole number from 1 to 2147483647, or -1")
    if cuts is not None and not isinstance(cuts, bool):
        raise bad("truncate", cuts, "true or false")
    if most is not None:
        return {"truncate": True if most == -1 else most}
    return {} if cuts is None else {"truncate": cuts}


def read_document_truncation(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option `truncate` of `embed` for the documents of a ranking.

    Long documents are cut by default, as in Cohere's API, so that one of them does not fail the
    others. `max_tokens_per_doc` is the most tokens of each.
    """
    most = body.get("max_tokens_per_doc")
    if most is None:
        return {"truncate": True, **read_truncation(body)}
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most < 2**31:
        raise bad("max_tokens_per_doc", most, "a whole number from 1 to 2147483647")
    return {"truncate": most}


def embeddings_body(
    made: Sequence[Embedding], *, model: str, as_base64: bool, dimensions: int | None
) -> dict[str, Any]:
    """Return the body of a response. Vectors have length 1, also after truncation.

    dimensions: the numbers of a vector; None: all. Raises HttpError if the model has fewer.
    """
    items = _embedding_items(made, as_base64, dimensions)
    return {"object": "list", "data": [*items], "model": model, "usage": _usage(made)}


def embeddings_json(
    made: Sequence[Embedding], *, model: str, as_base64: bool, dimensions: int | None
) -> bytes:
    """Return the body of `embeddings_body` as JSON, each vector of which is written by itself."""
    head = embeddings_body([], model=model, as_base64=as_base64, dimensions=dimensions)
    head["usage"] = _usage(made)
    return list_json(head, "data", _embedding_items(made, as_base64, dimensions))


def _embedding_items(
    made: Sequence[Embedding], as_base64: bool, dimensions: int | None
) -> Iterator[dict[str, Any]]:
    for i, one in enumerate(made):
        vector = _unit(one.vector, dimensions)
        told: Any = vector.tolist()
        if as_base64:
            told = base64.b64encode(vector.astype("<f4").tobytes()).decode()
        yield {"object": "embedding", "index": i, "embedding": told}


def read_pairs(body: Mapping[str, Any]) -> dict[str, Texts]:
    """Return two lists of texts of equal length, by the names that the request gives them."""
    value, name = _given(body, "text_1", "queries")
    first = _texts(value, name)
    other_value, other = _given(body, "text_2", "documents", "items")
    second = _texts(other_value, other)
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise bad(other, len(second), f"as many texts as {name} has: {len(first)}")
    return {name: first, other: second}


def pairs_body(scores: Sequence[float], made: Sequence[Embedding], head: Mapping[str, Any]) -> Any:
    """Return the body of a response with a score for each pair."""
    data = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores)]
    return {**head, "data": data, "usage": _usage(made)}


def read_rank(body: Mapping[str, Any]) -> tuple[str, list[str], int]:
    """Return the query, the documents, and the number of requested documents."""
    query, documents = body.get("query"), body.get("documents")
    if not isinstance(query, str):
        raise bad("query", query, "a text")
    if not isinstance(documents, list) or not 0 < len(documents) <= _MOST:
        raise bad("documents", documents, f"a list of 1 to {_MOST} texts")
    texts: list[str] = []
    for i, one in enumerate(documents):
        text = one.get("text") if isinstance(one, dict) else one
        if not isinstance(text, str):
            raise bad(f"documents[{i}]", text, "a text")
        texts.append(text)
    top = body.get("top_n")
    is_whole = isinstance(top, int) and not isinstance(top, bool)
    if top is not None and not (is_whole and top >= 1):
        raise bad("top_n", top, "a whole number, 1 or more")
    return query, texts, len(texts) if top is None else min(int(top), len(texts))


def ranked_body(
    documents: Sequence[str],
    scores: Sequence[float],
    top: int,
    made: Sequence[Embedding],
    head: Mapping[str, Any],
    *,
    with_documents: bool = True,
) -> dict[str, Any]:
    """Return the body of a response with documents by descending score. Ties keep their order.

    with_documents: False leaves out the texts of the documents.
    """
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:top]
    results: list[dict[str, Any]] = []
    for i in order:
        document = {"document": {"text": documents[i]}} if with_documents else {}
        results.append({"index": i, **document, "relevance_score": scores[i]})
    return {**head, "results": results, "usage": _usage(made)}


def similarities(first: Sequence[Embedding], second: Sequence[Embedding]) -> list[float]:
    """Return the cosine similarity of each pair of vectors."""
    return [
        float(_unit(one.vector, None) @ _unit(other.vector, None))
        for one, other in zip(first, second, strict=True)
    ]


def _unit(vector: Any, dimensions: int | None) -> np.ndarray:
    whole = np.asarray(vector, np.float32)
    if dimensions is not None and dimensions > len(whole):
        raise bad("dimensions", dimensions, f"at most {len(whole)}, as the model has them")
    cut = whole if dimensions is None else whole[:dimensions]
    norm = float(np.linalg.norm(cut))
    return cut if norm == 0.0 else cut / np.float32(norm)


def _given(body: Mapping[str, Any], *names: str) -> tuple[object, str]:
    """Return the value and the name of the first of these fields that is present."""
    name = next((one for one in names if body.get(one) is not None), names[0])
    return body.get(name), name


def _texts(value: object, name: str) -> Texts:
    wanted = "a text, a list of texts, a list of token ids, or a list of these lists"
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise bad(name, value, wanted)
    kinds = set(map(type, value))
    if kinds == {int}:
        return [value]
    if not kinds <= {str, list}:
        raise bad(name, value, wanted)
    if len(value) > _MOST:
        told = f"{name} has {len(value)} texts; it must have at most {_MOST}: send fewer"
        raise HttpError(400, told, code="invalid_value", param=name)
    return value


def _usage(made: Sequence[Embedding]) -> dict[str, int]:
    tokens = sum(one.prompt_tokens for one in made)
    return {"prompt_tokens": tokens, "total_tokens": tokens}
