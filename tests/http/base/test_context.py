"""What handlers share: the texts of a model's tokens are those of the model that is served."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from pybatcher import BatcherClosedError, ModelInfo
from pybatcher.http.base.body_room import BodyRoom
from pybatcher.http.base.context import Context
from pybatcher.http.base.model_list import ModelList
from pybatcher.testing import fake_batcher


class Reloaded:
    """A batcher whose model is another one after a reload: each token has another text."""

    fingerprint = "first"
    closed = False

    async def model_info(self) -> ModelInfo:
        if self.closed:
            raise BatcherClosedError("it was closed")
        counts: Any = {"max_sequence_length": 9, "vocab_size": 9, "kv_block_size": 1}
        return ModelInfo(name="m", fingerprint=self.fingerprint, **counts)

    async def token_bytes(self, ids: list[int]) -> list[bytes]:
        return [f"{self.fingerprint} {one}".encode() for one in ids]


async def test_texts_of_tokens_are_kept_until_the_model_is_another_one() -> None:
    async with fake_batcher() as batcher:
        context = Context(ModelList(batcher), 1000, BodyRoom(1000))
    model: Any = Reloaded()
    wanted = {"logprobs": 0}
    texts = await context.texts("m", model, wanted)
    await texts.learn([5])
    assert texts[5] == "first 5"
    assert await context.texts("m", model, wanted) is texts
    model.fingerprint = "second"
    after = await context.texts("m", model, wanted)
    await after.learn([5])
    assert after[5] == "second 5"
    assert texts[5] == "first 5", "an answer under way goes on with its own"


async def test_what_cannot_be_had_is_left_out() -> None:
    async with fake_batcher() as batcher:
        context = Context(ModelList(batcher), 1000, BodyRoom(1000))
        info = await context.model_info(batcher)
        assert info == await batcher.model_info()
    model: Any = Reloaded()
    model.closed = True
    assert await context.model_info(model) is None
    assert await context.texts("m", model, {"logprobs": 0})


@pytest.mark.parametrize(
    ("namespace", "header", "tenant"),
    [
        (None, None, None),
        (None, "Nina", "Nina"),
        ("key-1", None, "key-1"),
        ("key-1", "", "key-1"),
        ("key-1", "Nina", "key-1\nNina"),
    ],
)
async def test_a_tenant_shares_in_the_share_of_its_key(
    namespace: str | None, header: str | None, tenant: str | None
) -> None:
    headers = [] if header is None else [(b"x-tenant", header.encode())]
    scope = {"type": "http", "headers": headers, "pybatcher.namespace": namespace}
    async with fake_batcher() as batcher:
        context = Context(ModelList(batcher), 1000, BodyRoom(1000))
        options = context.options(Request(scope))
    assert (options.get("namespace"), options.get("tenant")) == (namespace, tenant)
