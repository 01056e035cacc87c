"""The front as a batcher: what its calls are to the front."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any, cast

from pybatcher.calls.call import Call
from pybatcher.calls.questions import EmbedTexts, ReadHealth
from pybatcher.calls.statistics import Health
from pybatcher.sidecar.front.front import Front
from pybatcher.sidecar.front.own_client import OwnClient

HEALTH = Health("new", "the model is being opened")


class FrontDouble:
    """Notes what it is asked; submits nothing."""

    model_name = "its name"

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def submit(self, call: Call, reply: Any) -> range:
        self.asked.append(call)
        raise LookupError

    async def ask(self, question: Any) -> Any:
        self.asked.append(question)
        return HEALTH


async def started(front: FrontDouble) -> OwnClient:
    client = OwnClient(cast(Front, front))
    await client.start()
    return client


async def test_it_says_what_the_front_says() -> None:
    client = await started(front := FrontDouble())
    assert client.model_name == "its name"
    assert await client.health() is HEALTH
    assert front.asked == [ReadHealth()]


async def test_each_namespace_is_a_tenant_and_none_of_the_sockets() -> None:
    client = await started(front := FrontDouble())
    for namespace in (None, "key-1", "key-2"):
        await client.embed(["text"], namespace=namespace)
        service = client._running_service()
        with suppress(LookupError):
            await service.submit(Call(content="a", namespace=namespace), cast(Any, None))
    tenants = [asked.tenant for asked in front.asked]
    assert tenants == ["http"] * 2 + ["http key-1"] * 2 + ["http key-2"] * 2
    assert isinstance(front.asked[0], EmbedTexts)
    await client.embed(["text"], namespace="key-1", tenant="key-1\nNina")
    assert front.asked[-1].tenant == "http key-1\nNina"


async def test_metrics_have_to_fetch_its_statistics() -> None:
    assert inspect.iscoroutinefunction(OwnClient.statistics)


async def test_closing_it_leaves_the_front() -> None:
    client = await started(FrontDouble())
    await client.close()
    await client.close(drain=False)
