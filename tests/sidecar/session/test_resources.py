"""What a connection holds besides its requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from session_helpers import ServiceOf

from pybatcher import InvalidRequestError
from pybatcher.calls.call import Question
from pybatcher.calls.questions import AddPrefix, RemovePrefix
from pybatcher.sidecar.session.resources import SessionResources
from pybatcher.testing import fake_batcher


async def test_only_what_it_added_is_removed() -> None:
    async with fake_batcher(max_prefixes=3) as batcher:
        await batcher.add_prefix("c" * 40, name="c")
        resources = SessionResources(ServiceOf(batcher))
        assert not resources.has_prefixes
        info = await resources.ask(AddPrefix(prefix="a" * 40, name=None, namespace=""))
        assert info.name is not None
        await resources.ask(AddPrefix(prefix="b" * 40, name="b", namespace=None))
        await resources.ask(RemovePrefix(name="b", namespace=""))
        await resources.ask(RemovePrefix(name="c", namespace=None))  # that of somebody else: it may
        await batcher.remove_prefix(info.name)  # and somebody else removes its own
        assert resources.has_prefixes
        await resources.remove_prefixes()
        assert not resources.has_prefixes
        assert batcher.prefixes() == ()


async def test_what_it_has_removed_is_not_removed_again_from_others() -> None:
    async with fake_batcher(max_prefixes=3) as batcher:
        resources = SessionResources(ServiceOf(batcher))
        for namespace, same in (("", None), (None, "")):
            await resources.ask(AddPrefix(prefix="a" * 40, name="a", namespace=namespace))
            await resources.ask(RemovePrefix(name="a", namespace=same))
            assert not resources.has_prefixes
        await batcher.add_prefix("a" * 40, name="a")
        await resources.remove_prefixes()
        assert [info.name for info in batcher.prefixes()] == ["a"]


class Held(ServiceOf):
    """Says only when it may that a prefix is removed."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.has_removed, self.may_say_so = asyncio.Event(), asyncio.Event()

    async def ask(self, question: Question[Any]) -> Any:
        answer = await super().ask(question)
        if isinstance(question, RemovePrefix):
            self.has_removed.set()
            await self.may_say_so.wait()
        return answer


async def test_a_cancelled_removal_is_one_all_the_same_also_at_the_end() -> None:
    async with fake_batcher(max_prefixes=3) as batcher:
        await batcher.add_prefix("a" * 40, name="a")  # of somebody else
        service = Held(batcher)
        resources = SessionResources(service)
        await resources.ask(AddPrefix(prefix="a" * 40, name="a", namespace=None))
        removing = asyncio.create_task(resources.ask(RemovePrefix(name="a", namespace=None)))
        await service.has_removed.wait()
        removing.cancel()
        await asyncio.wait({removing})
        assert removing.cancelled()
        service.may_say_so.set()
        await resources.remove_prefixes()
        assert not resources.has_prefixes
        assert [(info.name, info.holders) for info in batcher.prefixes()] == [("a", 1)]


async def test_what_could_not_be_removed_is_held_still() -> None:
    async with fake_batcher(max_prefixes=3) as batcher:
        resources = SessionResources(ServiceOf(batcher))
        await resources.ask(AddPrefix(prefix="a" * 40, name="a", namespace=None))
        await batcher.remove_prefix("a")
        with pytest.raises(InvalidRequestError):
            await resources.ask(RemovePrefix(name="a", namespace=None))
        assert resources.has_prefixes


async def test_what_fails_is_not_held() -> None:
    async with fake_batcher(max_prefixes=1) as batcher:
        resources = SessionResources(ServiceOf(batcher))
        with pytest.raises(InvalidRequestError):
            await resources.ask(AddPrefix(prefix="", name="a", namespace=None))
        adding = asyncio.create_task(
            resources.ask(AddPrefix(prefix="a" * 4000, name="a", namespace=None))
        )
        await asyncio.sleep(0)
        adding.cancel()
        await asyncio.wait({adding})
        assert adding.cancelled()
        assert not resources.has_prefixes


async def test_a_watch_is_one_however_often_it_is_wanted() -> None:
    async with fake_batcher() as batcher:
        resources = SessionResources(ServiceOf(batcher))
        for wanted in (False, True, True, False, False):
            resources.watch(print if wanted else None)
            assert batcher._telemetry.has_handlers == wanted
