"""What a model's files recommend, from the file to the tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from small_sidecar import sidecar

from pybatcher import Batcher, Client, InvalidRequestError
from pybatcher.http import application
from pybatcher.models import tiny_path

PROMPT = "Once upon a time"
SAMPLING = {"temperature": 0.9, "top_k": 1}  # which draws what greedy draws


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    shutil.copytree(tiny_path(), directory)
    config = json.loads((directory / "generation_config.json").read_text())
    (directory / "generation_config.json").write_text(json.dumps({**config, **SAMPLING}))
    return directory


async def test_fields_that_are_named_are_the_models(model: Path) -> None:
    async with Batcher(model) as batcher:
        assert (await batcher.model_info()).sampling == SAMPLING
        greedy = await batcher.generate(PROMPT, max_tokens=20)
        drawn = {"temperature": 1.5, "seed": 1, "max_tokens": 20}
        other = await batcher.generate(PROMPT, **drawn)
        assert other.token_ids != greedy.token_ids
        same = await batcher.generate(PROMPT, **drawn, of_model=["top_k"])
        assert same.token_ids == greedy.token_ids
        with pytest.raises(InvalidRequestError, match="of_model is"):
            await batcher.generate(PROMPT, of_model="top_k")


async def test_over_a_socket(model: Path, tmp_path: Path) -> None:
    async with (
        Batcher(model) as batcher,
        sidecar(tmp_path / "socket", batcher),
        Client(tmp_path / "socket") as client,
    ):
        assert (await client.model_info()).sampling == SAMPLING
        drawn = {"temperature": 1.5, "seed": 1, "max_tokens": 20}
        for of_model in ((), ("top_k", "min_p"), ("temperature",)):
            found = await client.generate(PROMPT, **drawn, of_model=of_model)
            expected = await batcher.generate(PROMPT, **drawn, of_model=of_model)
            assert found.token_ids == expected.token_ids


CHAT = [{"role": "user", "content": PROMPT}]
REQUESTS: list[tuple[str, dict[str, Any], Callable[[Any], str]]] = [
    ("completions", {"prompt": PROMPT}, lambda body: body["choices"][0]["text"]),
    ("chat/completions", {"messages": CHAT}, lambda body: body["choices"][0]["message"]["content"]),
    ("responses", {"input": PROMPT}, lambda body: body["output"][0]["content"][0]["text"]),
    ("messages", {"messages": CHAT, "max_tokens": 20}, lambda body: body["content"][0]["text"]),
]


@pytest.mark.parametrize(("path", "asked", "text_of"), REQUESTS)
async def test_over_http_they_count_where_nothing_is_said(
    path: str, asked: dict[str, Any], text_of: Callable[[Any], str], model: Path
) -> None:
    async with Batcher(model) as batcher:
        transport = httpx.ASGITransport(app=application(batcher))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:

            async def texts(**more: Any) -> set[str]:
                bodies = [{**asked, "seed": seed, **more} for seed in range(3)]
                answers = [await http.post(f"/v1/{path}", json=body) for body in bodies]
                return {text_of(answer.raise_for_status().json()) for answer in answers}

            assert len(await texts()) == 1
            assert len(await texts(top_k=0)) == 3


@pytest.mark.parametrize(("path", "asked", "text_of"), REQUESTS)
async def test_over_http_without_a_recommendation(
    path: str, asked: dict[str, Any], text_of: Callable[[Any], str]
) -> None:
    async with Batcher() as batcher:
        transport = httpx.ASGITransport(app=application(batcher))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:

            async def texts(**more: Any) -> list[str]:
                bodies = [{**asked, "seed": seed, **more} for seed in range(4)]
                answers = [await http.post(f"/v1/{path}", json=body) for body in bodies]
                return [text_of(answer.raise_for_status().json()) for answer in answers]

            is_chat = path != "completions"
            usual = {"temperature": 0.7, "min_p": 0.05} if is_chat else {"temperature": 1.0}
            assert await texts() == await texts(**usual)
            plain = await texts(temperature=1.0, min_p=0.0)
            assert await texts(temperature=1.0) == plain
            assert (await texts() == plain) == (not is_chat)
