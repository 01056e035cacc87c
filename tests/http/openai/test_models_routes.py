"""The list of models in the forms of both APIs, read by their own clients."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anthropic
import httpx
import openai
import pytest
from http_served import served

from pybatcher.http import application
from pybatcher.http.base.http_error import HttpError
from pybatcher.http.openai.models_routes import page_of
from pybatcher.testing import fake_batcher


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with (
        fake_batcher(n_ctx=4096) as one,
        fake_batcher() as other,
        served(application({"org/small": one, "large": other})) as url,
    ):
        yield url


async def test_each_client_gets_its_own_form(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
        assert [one.id async for one in client.models.list()] == ["org/small", "large"]
        assert (await client.models.retrieve("org/small")).object == "model"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.models.retrieve("gpt-9")
        assert missing.value.code == "model_not_found"
    async with anthropic.AsyncAnthropic(base_url=url, api_key="any") as claude:
        listed = [one async for one in claude.models.list()]
        assert [(one.id, one.type, one.display_name) for one in listed] == [
            ("org/small", "model", "org/small"),
            ("large", "model", "large"),
        ]
        assert listed[0].max_input_tokens == 4096
        assert listed[0].created_at.year > 2020
        assert [one.id async for one in claude.models.list(limit=1)] == ["org/small", "large"]
        assert await claude.models.retrieve("large") == listed[1]
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await claude.models.retrieve("gpt-9")
        assert unknown.value.type == "not_found_error"


async def test_the_form_of_anthropic(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        version = {"anthropic-version": "2023-06-01"}
        found = await http.get("/v1/models?limit=1", headers=version)
        assert "request-id" in found.headers
        told = found.json()
        assert (told["has_more"], told["first_id"], told["last_id"]) == (
            True,
            "org/small",
            "org/small",
        )
        assert set(told) == {"data", "has_more", "first_id", "last_id"}
        wrong = await http.get("/v1/models?limit=0", headers=version)
        assert (wrong.status_code, wrong.json()["type"]) == (400, "error")


@pytest.mark.parametrize(
    ("query", "page", "has_more"),
    [
        ({}, "abcd", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "2", "after_id": "a"}, "bc", True),
        ({"limit": "2", "after_id": "b"}, "cd", False),
        ({"after_id": "d"}, "", False),
        ({"limit": "2", "before_id": "d"}, "bc", True),
        ({"limit": "2", "before_id": "c"}, "ab", False),
    ],
)
def test_pages(query: dict[str, str], page: str, has_more: bool) -> None:
    assert page_of(list("abcd"), query) == (list(page), has_more)


@pytest.mark.parametrize(
    ("field", "value"), [("limit", "x"), ("limit", "1001"), ("after_id", "e"), ("before_id", "")]
)
def test_pages_that_there_are_not(field: str, value: str) -> None:
    with pytest.raises(HttpError) as raised:
        page_of(list("abcd"), {field: value})
    assert raised.value.param == field
