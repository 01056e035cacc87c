"""Rankings over HTTP: long documents, and what a ranking has of a document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from pybatcher.http import application
from pybatcher.testing import fake_batcher

LONG = "a long document " * 50


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with fake_batcher(n_ctx=64) as batcher:
        transport = httpx.ASGITransport(application(batcher))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as one:
            yield one


async def ranked(http: httpx.AsyncClient, **body: Any) -> tuple[dict[int, float], int]:
    """Return the scores by the index of the document, and the number of tokens."""
    found = await http.post("/v1/rerank", json=body)
    assert found.status_code == 200, found.text
    told = found.json()
    scores = {one["index"]: one["relevance_score"] for one in told["results"]}
    return scores, told["usage"]["total_tokens"]


async def test_a_long_document_is_cut(http: httpx.AsyncClient) -> None:
    """The fake model has a special token before those of the bytes, and 64 positions."""
    documents = ["a long document", LONG]
    scores, n_tokens = await ranked(http, query="long", documents=documents)
    cut, _ = await ranked(http, query="long", documents=["a long document", LONG[:63]])
    assert scores == cut
    assert n_tokens == 5 + 16 + 64
    scores, n_tokens = await ranked(http, query="long", documents=documents, max_tokens_per_doc=6)
    cut, _ = await ranked(http, query="long", documents=[LONG[:5]] * 2)
    assert scores == cut
    assert n_tokens == 5 + 2 * 6
    _, n_tokens = await ranked(http, query="long", documents=documents, truncate_prompt_tokens=3)
    assert n_tokens == 3 * 3


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"query": LONG, "documents": ["a"]}, "query"),
        *(({"max_tokens_per_doc": one}, "max_tokens_per_doc") for one in (0, -1, "5", True, 1.5)),
    ],
)
async def test_a_ranking_that_is_refused(
    http: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    asked = {"query": "a", "documents": ["b"], **body}
    found = await http.post("/v1/rerank", json=asked)
    assert (found.status_code, found.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("flag", [None, True, False])
async def test_documents_are_returned(http: httpx.AsyncClient, flag: bool | None) -> None:
    asked = {"query": "a", "documents": ["b", {"text": "c"}], "return_documents": flag}
    results = (await http.post("/v2/rerank", json=asked)).json()["results"]
    texts = {one["index"]: one.get("document") for one in results}
    assert texts == ({0: None, 1: None} if flag is False else {0: {"text": "b"}, 1: {"text": "c"}})
