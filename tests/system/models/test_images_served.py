"""Chats with images over a real server: the tokens in process, also after a worker has died."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from serving_doubles import Serving, serving

from pybatcher import Batcher, Client, Completion, InvalidRequestError
from tests.support.vision_checkpoints import Turn, make_vision_checkpoint, messages_of, picture

pytestmark = pytest.mark.slow

CAT, DOG = picture(40, 60), picture(33, 20, seed=1)
FIRST = messages_of([Turn("user", (CAT, "What is this?"))])
NEXT: Any = messages_of([Turn("user", ("And ", DOG, "?"))])
OPTIONS: dict[str, Any] = {"dtype": "f32", "n_ctx": 4096, "n_parallel": 4, "weights_cache": "off"}
ASKED: Any = {"max_tokens": 1500, "seed": 3, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vision") / "small-vl"
    make_vision_checkpoint(path, "qwen3_vl")
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 4096  # for answers that can be disturbed
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture
def running(model: Path, tmp_path: Path) -> Iterator[Serving]:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    with serving(tmp_path, "--model", str(model), "--http", "127.0.0.1:0", *options) as one:
        yield one


async def expected(model: Path) -> list[Completion]:
    """Return the two answers of a conversation in process."""
    async with Batcher(model, n_threads=1, **OPTIONS) as batcher:
        first = await batcher.chat(FIRST, **ASKED)
        return [first, await batcher.chat([*FIRST, first.message, *NEXT], **ASKED)]


async def test_a_conversation_outlives_its_workers(model: Path, running: Serving) -> None:
    wanted = await expected(model)
    pids = [running.worker_pid]
    async with Client(running.socket) as client:
        assert (await client.model_info()).takes_images
        for messages, whole in zip(
            (FIRST, [*FIRST, wanted[0].message, *NEXT]), wanted, strict=True
        ):
            tokens: list[int] = []
            stream = client.stream_chat(messages, **ASKED)
            async with stream as pieces:
                async for piece in pieces:
                    if not tokens:
                        os.kill(pids[-1], signal.SIGKILL)
                    tokens += piece.token_ids
            assert tuple(tokens) == whole.token_ids
            made = stream.completion
            assert made is not None
            assert made.usage.image_tokens == whole.usage.image_tokens > 0
            pids.append(running.worker_pid)
        again = await client.chat([*FIRST, wanted[0].message, *NEXT], **ASKED)
        assert again.token_ids == wanted[1].token_ids
        statistics = await client.statistics()
    assert len(set(pids)) == 3
    assert statistics.replayed_requests == 2


async def test_openais_client_and_a_hostile_image_beside_it(model: Path, running: Serving) -> None:
    whole = (await expected(model))[0]

    def body(data: bytes) -> Any:
        url = "data:image/png;base64," + base64.b64encode(data).decode()
        image = {"type": "image_url", "image_url": {"url": url}}
        text = {"type": "text", "text": "What is this?"}
        return {
            "model": "small-vl",
            "messages": [{"role": "user", "content": [image, text]}],
            "extra_body": ASKED,
        }

    file = io.BytesIO()
    CAT.save(file, "PNG")
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="a", max_retries=0) as one:
        (told,) = (await one.models.list()).data
        assert told.model_dump()["takes_images"] is True
        good, *bad = await asyncio.gather(
            one.chat.completions.create(**body(file.getvalue())),
            *(
                one.chat.completions.create(**body(data))
                for data in (b"<svg/>", file.getvalue()[:90], os.urandom(2**20))
            ),
            return_exceptions=True,
        )
    for error in bad:
        assert isinstance(error, openai.BadRequestError)
        assert error.param == "messages[0].content[0].image_url.url"
    assert not isinstance(good, BaseException)
    assert good.choices[0].message.content == whole.text
    assert good.usage.prompt_tokens == whole.usage.prompt_tokens


async def test_a_hostile_image_over_the_socket_fails_alone(running: Serving) -> None:
    async with Client(running.socket) as client:
        hostile: Any = [{"role": "user", "content": [{"type": "image", "image": b"\x89PNG"}]}]
        good, error = await asyncio.gather(
            client.chat(FIRST, max_tokens=8), client.chat(hostile), return_exceptions=True
        )
        assert isinstance(error, InvalidRequestError)
        assert error.field == "messages[0].content[0].image"
        assert isinstance(good, Completion)
