"""The router's own decisions, with stand-ins for what it gets of Ray."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from pybatcher.ray.request_router import PrefixRouter


def replica(name: str, held: tuple[int, ...] = (), ongoing: int = 0, kind: str = "k") -> Any:
    return SimpleNamespace(
        replica_id=name,
        routing_stats={"held": array("Q", held).tobytes(), "ongoing": ongoing},
        replica_metadata={"fingerprint": kind},
    )


def asked(*prefix: int, fingerprint: str = "") -> Any:
    hashes = array("Q", prefix).tobytes()
    return request(prefix=hashes, fingerprint=fingerprint)


def request(**kwargs: Any) -> Any:
    context = SimpleNamespace(should_backoff=False)
    return SimpleNamespace(kwargs=kwargs, routing_context=context)


@pytest.fixture
def known() -> dict[str, int]:
    """Requests in flight at replicas, as far as Ray knows them here."""
    return {}


@pytest.fixture
def router(known: dict[str, int]) -> PrefixRouter:
    class Router(PrefixRouter):
        replica_queue_len_cache = known

    made = Router()
    made.initialize_state(imbalance=2)
    return made


async def order(router: PrefixRouter, replicas: list[Any], asked: Any) -> list[str]:
    ranks = await router.choose_replicas(replicas, asked)
    return [one.replica_id for (one,) in ranks]


async def test_the_replica_that_holds_the_prompt_comes_first(router: PrefixRouter) -> None:
    replicas = [replica("a"), replica("b", (1, 2)), replica("c", (1,))]
    assert await order(router, replicas, asked(1, 2, 3)) == ["b", "c", "a"]


async def test_one_that_is_too_busy_comes_last(router: PrefixRouter, known: dict[str, int]) -> None:
    replicas = [replica("a"), replica("b", (1, 2), ongoing=9)]
    assert await order(router, replicas, asked(1, 2)) == ["a", "b"]  # by its own report
    known["b"] = 2
    assert await order(router, replicas, asked(1, 2)) == ["b", "a"]  # known better here


async def test_what_was_routed_counts_before_it_is_reported(router: PrefixRouter) -> None:
    replicas = [replica("a"), replica("b"), replica("c")]
    router.on_request_routed(asked(5, 6), "c", None)
    for _ in range(3):
        assert (await order(router, replicas, asked(5, 6)))[0] == "c"


async def test_an_output_goes_on_where_it_draws_the_same_tokens(router: PrefixRouter) -> None:
    replicas = [replica("a", (1,), kind="x"), replica("b", kind="y"), replica("c", kind="y")]
    assert set(await order(router, replicas, asked(1, fingerprint="y"))) == {"b", "c"}
    assert await order(router, replicas, asked(1, fingerprint="z")) != []  # which refuses


async def test_a_call_without_hints_is_routed_by_load(router: PrefixRouter) -> None:
    replicas = [replica("a", ongoing=1), replica("b")]
    assert await order(router, replicas, request()) == ["b", "a"]
    assert await order(router, replicas, None) == ["b", "a"]
    assert await order(router, [], asked(1)) == []


async def test_replicas_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Base:
        curr_replicas: dict[str, Any] = {}  # noqa: RUF012

        def update_replicas(self, replicas: list[Any]) -> None:
            seen.append(replicas)

        def on_replica_actor_died(self, replica_id: str) -> None:
            seen.append(replica_id)

    class Router(PrefixRouter, Base):
        replica_queue_len_cache: dict[str, int] = {}  # noqa: RUF012

    router = Router()
    router.initialize_state()
    replicas = [replica("a", (1,)), replica("b", (1,))]
    await router.choose_replicas(replicas, asked(1))
    assert len(router._index) == 2
    router.update_replicas(replicas[1:])
    assert len(router._index) == 1
    router.on_replica_actor_died("b")
    assert len(router._index) == 0
    assert seen == [replicas[1:], "b"]


async def test_ray_waits_before_it_asks_again(router: PrefixRouter) -> None:
    """By itself it does not, and its loop hears of nothing any more."""
    pending = asked(1)
    await order(router, [replica("a")], pending)
    assert pending.routing_context.should_backoff
