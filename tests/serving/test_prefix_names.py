"""Prefixes as objects: computed once, kept, named, counted, removed."""

from __future__ import annotations

import asyncio
import threading

import pytest
from batcher_helpers import PATIENCE, until, wait_for
from virtual_time import in_virtual_time

from pybatcher import (
    Batcher,
    BatcherClosedError,
    BlockingBatcher,
    DeadlineExceededError,
    EngineFailedError,
    InvalidRequestError,
    NoFreeSequenceError,
    PrefixInfo,
    PybatcherError,
    RequestTooLongError,
)
from pybatcher.scheduling import StepPlan
from pybatcher.serving.prefix_names import PrefixNames
from pybatcher.serving.prompts import PromptReader
from pybatcher.testing import FakeClock, FakeEngine, byte_tokenizer, fake_batcher

MANUAL = "A manual that everybody asks about. " * 8
N_MANUAL = 1 + len(MANUAL)  # one token a byte, after the one that begins a text


def batcher_over(engine: FakeEngine, **options: object) -> Batcher:
    return fake_batcher(engine, **{"max_prefixes": 2, **options})


def computed(engine: FakeEngine) -> int:
    return engine.statistics()["computed_tokens"]


def used_blocks(engine: FakeEngine) -> int:
    return engine.kv_total_blocks - engine.kv_free_blocks - engine.kv_cached_blocks


async def test_it_is_computed_once_and_prompts_that_begin_so_use_it() -> None:
    engine = FakeEngine(n_parallel=6)
    async with batcher_over(engine) as batcher:
        info = await batcher.add_prefix(MANUAL, name="manual")
        assert info == PrefixInfo("manual", None, N_MANUAL, N_MANUAL, 1)
        assert computed(engine) == N_MANUAL
        questions = [f"{i} is what?" for i in range(5)]
        answers = await asyncio.gather(
            *(batcher.generate(MANUAL + question, max_tokens=1) for question in questions)
        )
        assert computed(engine) == N_MANUAL + sum(map(len, questions))
        assert {answer.usage.cached_tokens for answer in answers} == {N_MANUAL}
    async with fake_batcher() as plain:
        for question, answer in zip(questions, answers, strict=True):
            alone = await plain.generate(MANUAL + question, max_tokens=1)
            assert answer.token_ids == alone.token_ids


async def test_it_stays_when_the_cache_has_to_give_up_all_else() -> None:
    engine = FakeEngine(n_ctx=1024, n_parallel=6)
    async with batcher_over(engine) as batcher:
        await batcher.add_prefix(MANUAL, name="manual")
        for i in range(4):
            await batcher.generate([i] * 600, max_tokens=1)
        before = computed(engine)
        answer = await batcher.generate(MANUAL + "?", max_tokens=1)
        assert computed(engine) == before + 1
        assert answer.usage.cached_tokens == N_MANUAL


async def test_names_count_their_holders_and_share_what_is_the_same() -> None:
    engine = FakeEngine(n_parallel=6)
    async with batcher_over(engine) as batcher:
        await batcher.add_prefix(MANUAL, name="a")
        await batcher.add_prefix(MANUAL, name="b")
        again = await batcher.add_prefix(MANUAL, name="a")
        nameless = await batcher.add_prefix(MANUAL)
        assert again.holders == 2
        assert computed(engine) == N_MANUAL
        assert [(info.name, info.holders) for info in batcher.prefixes()] == [
            ("a", 2),
            ("b", 1),
            (nameless.name, 1),
        ]
        blocks = -(-N_MANUAL // engine.block_size)
        for name in ("a", "b", "a"):
            assert used_blocks(engine) == blocks
            await batcher.remove_prefix(name)
        assert used_blocks(engine) == blocks
        await batcher.remove_prefix(str(nameless.name))
        assert used_blocks(engine) == 0
        assert engine.used_sequences == 0
        assert batcher.prefixes() == ()


async def test_a_name_is_of_one_prefix() -> None:
    async with fake_batcher(max_prefixes=2) as batcher:
        await batcher.add_prefix("one", name="a")
        with pytest.raises(InvalidRequestError, match=r"name is 'a', .* of another .* of 4 tokens"):
            await batcher.add_prefix("two", name="a")
        with pytest.raises(
            InvalidRequestError, match=r"name is 'b', and no prefix .* there are: a"
        ):
            await batcher.remove_prefix("b")
        with pytest.raises(InvalidRequestError, match="there are: none"):
            await batcher.remove_prefix("a", namespace="tenant")
        assert [info.name for info in batcher.prefixes()] == ["a"]


async def test_namespaces_share_neither_names_nor_kv() -> None:
    engine = FakeEngine(n_parallel=6)
    async with batcher_over(engine) as batcher:
        await batcher.add_prefix(MANUAL, name="manual", namespace="tenant")
        await batcher.add_prefix([7, 8], name="manual")
        foreign = await batcher.generate(MANUAL + "?", max_tokens=1)
        own = await batcher.generate(MANUAL + "?", max_tokens=1, namespace="tenant")
        assert (foreign.usage.cached_tokens, own.usage.cached_tokens) == (0, N_MANUAL)
        assert [(i.name, i.namespace) for i in batcher.prefixes()] == [
            ("manual", "tenant"),
            ("manual", None),
        ]
        await batcher.remove_prefix("manual", "tenant")
        assert [info.namespace for info in batcher.prefixes()] == [None]


async def test_after_a_system_prompt() -> None:
    system = "You know it all. "
    engine = FakeEngine(n_parallel=6)
    async with batcher_over(engine, system_prompt=system) as batcher:
        info = await batcher.add_prefix("The manual says: ", name="manual")
        assert info.n_tokens == 1 + len(system) + len("The manual says: ")
        assert computed(engine) == 1 + len(system) + info.n_tokens, "two, of which one is longer"
        await batcher.generate("The manual says: yes", max_tokens=1)
        assert computed(engine) == 1 + len(system) + info.n_tokens + len("yes")
        assert [(i.name, i.n_tokens, i.holders) for i in batcher.prefixes()] == [
            (None, 1 + len(system), 1),
            ("manual", info.n_tokens, 1),
        ]


async def test_of_token_ids_and_from_every_way_in() -> None:
    ids = byte_tokenizer().encode(MANUAL)
    async with fake_batcher(max_prefixes=2) as batcher:
        remote = batcher.threadsafe
        info = await asyncio.wrap_future(remote.add_prefix(ids, name="a"))
        assert (info,) == batcher.prefixes() == remote.prefixes()
        await asyncio.wrap_future(remote.remove_prefix("a"))
        assert batcher.prefixes() == ()
    assert batcher.prefixes() == ()


def test_without_asyncio() -> None:
    with BlockingBatcher.over(fake_batcher(max_prefixes=2)) as batcher:
        info = batcher.add_prefix(MANUAL, name="a", namespace="tenant")
        assert batcher.prefixes() == (info,)
        batcher.remove_prefix("a", "tenant")
        assert batcher.prefixes() == ()


async def test_removed_while_in_use() -> None:
    go_on = threading.Event()
    engine = FakeEngine(n_parallel=6)
    async with batcher_over(engine) as batcher:
        await batcher.add_prefix(MANUAL, name="manual")
        alone = await batcher.generate(MANUAL + "?", max_tokens=40, ignore_eos=True)
        engine.before_step = lambda plan: wait_for(go_on)
        task = asyncio.create_task(batcher.generate(MANUAL + "?", max_tokens=40, ignore_eos=True))
        await until(lambda: batcher.statistics().running == 1)
        await batcher.remove_prefix("manual")
        go_on.set()
        assert (await task).token_ids == alone.token_ids
        assert engine.used_sequences == used_blocks(engine) == 0


async def test_an_engine_that_fails_in_between_computes_it_anew() -> None:
    engine = FakeEngine(n_parallel=6)
    failures = [3, 9]  # while it is computed, and after

    def fail(plan: StepPlan) -> None:
        if len(engine.plans) in failures:
            raise OSError("a cable was pulled")

    engine.before_step = fail
    async with batcher_over(engine, n_batch=64) as batcher:
        info = await batcher.add_prefix(MANUAL, name="manual")
        assert info.computed_tokens == N_MANUAL
        assert batcher.statistics().restarts == 1
        while batcher.statistics().restarts < 2:
            await batcher.generate("x", max_tokens=1)
        await until(lambda: batcher.prefixes()[0].computed_tokens == N_MANUAL)
        answer = await batcher.generate(MANUAL + "?", max_tokens=1)
        assert answer.usage.cached_tokens == N_MANUAL
        await batcher.remove_prefix("manual")


async def test_an_engine_that_fails_for_good_fails_who_waits_for_it() -> None:
    def fail(plan: StepPlan) -> None:
        raise OSError("the cable is cut")

    engine = FakeEngine(n_parallel=6, before_step=fail)
    async with batcher_over(engine, max_restarts=1) as batcher:
        with pytest.raises(EngineFailedError, match="the cable is cut"):
            await batcher.add_prefix(MANUAL)
        with pytest.raises(EngineFailedError):
            await batcher.add_prefix(MANUAL)
        assert batcher.prefixes() == ()


async def test_an_engine_that_hangs_fails_who_waits_for_it() -> None:
    go_on = threading.Event()
    engine = FakeEngine(n_parallel=6, before_step=lambda plan: wait_for(go_on))
    clock = FakeClock()  # step_timeout: real time between looks at it
    async with batcher_over(engine, step_timeout=0.05, clock=clock) as batcher:
        try:
            adding = asyncio.create_task(batcher.add_prefix(MANUAL))
            await until(lambda: len(engine.plans) == 1)
            clock.advance(1.0)
            with pytest.raises(EngineFailedError, match="step_timeout"):
                await asyncio.wait_for(adding, PATIENCE / 3)
        finally:
            go_on.set()
        await until(lambda: batcher.health().ok)
        assert (await batcher.add_prefix(MANUAL)).computed_tokens == N_MANUAL


@pytest.mark.parametrize("steps", [0, 1, 1000])
async def test_cancelled_it_leaves_nothing(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is known, while it is computed, and in the moment when it is there."""
    go_on = threading.Event()
    engine = FakeEngine(n_parallel=6, before_step=lambda plan: wait_for(go_on))
    async with batcher_over(engine, n_batch=64) as batcher:
        task = asyncio.create_task(batcher.add_prefix(MANUAL, name="manual"))
        if steps:
            await until(lambda: len(engine.plans) == 1)
        if steps > 1:
            settle = PrefixNames.settle

            def settle_and_cancel(self: PrefixNames, failure: PybatcherError | None) -> None:
                settle(self, failure)
                if not self._awaited:
                    task.cancel()

            monkeypatch.setattr(PrefixNames, "settle", settle_and_cancel)
            go_on.set()
        else:
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await until(lambda: batcher.prefixes() == () and engine.used_sequences == 0)
        assert used_blocks(engine) == 0


IDS = list(range(3, 203))
TIMEOUT = 5.0


def in_virtual_batcher(engine: FakeEngine, **options: object) -> Batcher:
    """A batcher whose only timers are those of deadlines, which are due when nothing goes on."""
    clock = asyncio.get_running_loop().time
    return batcher_over(engine, step_timeout=None, clock=clock, **options)


async def late(batcher: Batcher) -> DeadlineExceededError:
    """Add a prefix that is not there after `TIMEOUT`, and return the error."""
    now = asyncio.get_running_loop().time
    began = now()
    with pytest.raises(DeadlineExceededError) as caught:
        await batcher.add_prefix(IDS, name="manual", timeout=TIMEOUT)
    assert now() - began == TIMEOUT
    return caught.value


@in_virtual_time
async def test_a_deadline_holds_while_a_prefix_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: object, **__: object) -> tuple[int, ...]:
        await asyncio.sleep(PATIENCE)
        return tuple(IDS)

    engine = FakeEngine(n_parallel=6)
    monkeypatch.setattr(PromptReader, "read", read)
    async with in_virtual_batcher(engine) as batcher:
        assert "not read within 5 s (timeout)" in str(await late(batcher))
        assert batcher.prefixes() == ()
        assert engine.plans == []


@pytest.mark.parametrize("is_queued", [False, True])
@in_virtual_time
async def test_a_prefix_that_is_late_leaves_nothing(is_queued: bool) -> None:
    """Its own step takes too long, or that of a request before it."""
    go_on = threading.Event()
    engine = FakeEngine(n_parallel=6, before_step=lambda plan: wait_for(go_on))
    async with in_virtual_batcher(engine, n_batch=64) as batcher:
        before = asyncio.create_task(batcher.generate("x", max_tokens=1)) if is_queued else None
        await asyncio.sleep(1.0)
        error = await late(batcher)
        assert "of 200 tokens, was not computed within 5.0 s (timeout)" in str(error)
        await asyncio.sleep(1.0)
        assert batcher.prefixes() == ()
        go_on.set()
        if before is not None:
            assert len((await before).token_ids) == 1
        await batcher.generate("y", max_tokens=1)
        assert computed(engine) < 64 + 10, "no step after the deadline has a row of it"
        assert engine.used_sequences == used_blocks(engine) == 0
        other = await batcher.add_prefix([7, 8], name="manual")
        assert (other.n_tokens, other.holders) == (2, 1)


@pytest.mark.parametrize("adds_too", [False, True])
@in_virtual_time
async def test_a_prefix_that_is_late_harms_nobody_else(adds_too: bool) -> None:
    """Somebody else adds the same prefix without a deadline; a prompt begins with it."""
    async with in_virtual_batcher(FakeEngine(n_parallel=6)) as batcher:
        alone = await batcher.generate([*IDS, 9], max_tokens=8, ignore_eos=True)
    go_on = threading.Event()
    engine = FakeEngine(n_parallel=6, before_step=lambda plan: wait_for(go_on))
    async with in_virtual_batcher(engine, n_batch=64) as batcher:
        adding = asyncio.create_task(batcher.add_prefix(IDS, name="manual")) if adds_too else None
        deciding = asyncio.create_task(late(batcher))
        await asyncio.sleep(1.0)
        answer = asyncio.create_task(batcher.generate([*IDS, 9], max_tokens=8, ignore_eos=True))
        await deciding
        go_on.set()
        assert (await answer).token_ids == alone.token_ids
        if adding is not None:
            info = await adding
            assert (info.name, info.holders, info.computed_tokens) == ("manual", 1, len(IDS))
            await batcher.remove_prefix("manual")
        await batcher.generate("y", max_tokens=1)
        assert batcher.prefixes() == ()
        assert engine.used_sequences == used_blocks(engine) == 0


@in_virtual_time
async def test_a_prefix_in_time_stays_after_its_deadline() -> None:
    async with in_virtual_batcher(FakeEngine(n_parallel=6)) as batcher:
        await batcher.add_prefix(IDS, name="manual")  # so that nothing is computed for the next
        info = await batcher.add_prefix(IDS, name="manual", timeout=TIMEOUT)
        assert info.holders == 2
        await asyncio.sleep(2 * TIMEOUT)
        assert batcher.prefixes() == (info,)


def test_threads_have_deadlines_too() -> None:
    go_on = threading.Event()
    engine = FakeEngine(n_parallel=6, before_step=lambda plan: wait_for(go_on))
    with BlockingBatcher.over(batcher_over(engine)) as batcher:
        try:
            with pytest.raises(DeadlineExceededError, match="not kept; raise timeout"):
                batcher.add_prefix(MANUAL, name="a", timeout=0.02)
        finally:
            go_on.set()
        assert batcher.add_prefix(MANUAL, name="a", timeout=PATIENCE).holders == 1


async def test_other_threads_have_deadlines_too() -> None:
    go_on = threading.Event()
    engine = FakeEngine(n_parallel=6, before_step=lambda plan: wait_for(go_on))
    async with batcher_over(engine) as batcher:
        adding = batcher.threadsafe.add_prefix(MANUAL, name="a", timeout=0.02)
        try:
            with pytest.raises(DeadlineExceededError, match="not kept; raise timeout"):
                await asyncio.wrap_future(adding)
        finally:
            go_on.set()
        await until(lambda: batcher.prefixes() == ())


async def test_removed_by_another_before_it_is_there() -> None:
    go_on = threading.Event()
    engine = FakeEngine(n_parallel=6, before_step=lambda plan: wait_for(go_on))
    async with batcher_over(engine) as batcher:
        task = asyncio.create_task(batcher.add_prefix(MANUAL, name="manual"))
        await until(lambda: len(engine.plans) == 1)
        await batcher.remove_prefix("manual")
        with pytest.raises(InvalidRequestError, match="'manual' was removed before it was there"):
            await asyncio.wait_for(task, PATIENCE)
        go_on.set()
    assert engine.used_sequences == 0


async def test_where_there_is_no_room() -> None:
    engine = FakeEngine(n_ctx=512, n_parallel=6)
    async with batcher_over(engine) as batcher:
        with pytest.raises(RequestTooLongError, match="shorten it or raise n_ctx"):
            await batcher.add_prefix([1] * 500)
        await batcher.add_prefix("a", name="a")
        await batcher.add_prefix("b", name="b")
        with pytest.raises(NoFreeSequenceError, match="remove one, or raise max_prefixes"):
            await batcher.add_prefix("c", name="c")
        await batcher.remove_prefix("a")
        await batcher.add_prefix("c", name="c")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prefix": ""}, "prefix is ''"),
        ({"prefix": [1, 999]}, r"prefix\[1\] is 999"),
        ({"name": ""}, "name is ''; it must be a text of at least one character"),
        ({"name": 5}, "name is 5"),
        ({"namespace": 5}, "namespace is 5"),
        ({"timeout": 0}, "timeout is 0; it must be seconds above 0"),
        ({"timeout": "1"}, "timeout is '1'"),
    ],
)
async def test_bad_arguments(arguments: dict[str, object], message: str) -> None:
    async with fake_batcher(max_prefixes=2) as batcher:
        with pytest.raises(InvalidRequestError, match=message):
            await batcher.add_prefix(**{"prefix": "x", **arguments})
        assert batcher.prefixes() == ()


async def test_a_close_fails_who_waits_for_it_and_frees_the_others() -> None:
    go_on = threading.Event()
    engine = FakeEngine(n_parallel=6)
    batcher = batcher_over(engine, n_batch=64)
    await batcher.start()
    await batcher.add_prefix("x", name="x")
    engine.before_step = lambda plan: wait_for(go_on)
    task = asyncio.create_task(batcher.add_prefix(MANUAL, name="manual"))
    await until(lambda: len(engine.plans) == 2)
    closing = asyncio.create_task(batcher.close())
    await until(lambda: batcher.health().status == "closing")
    go_on.set()
    await closing
    with pytest.raises(BatcherClosedError):
        await task
    with pytest.raises(BatcherClosedError):
        await batcher.add_prefix("y")
    with pytest.raises(BatcherClosedError):
        await batcher.remove_prefix("x")
    assert batcher.prefixes() == ()
    assert engine.used_sequences == 0
    counts = batcher.statistics()
    assert counts.kv_free_blocks + counts.kv_cached_blocks == counts.kv_total_blocks


async def test_over_the_real_engine() -> None:
    manual = "Mia has a kite and a dog, and the dog is called Rex. " * 4
    async with Batcher(n_ctx=2048) as batcher:
        prompts = [manual + question for question in ("Who is Rex?", "What does Mia have?")]
        before = [await batcher.generate(prompt, max_tokens=12) for prompt in prompts]
    async with Batcher(n_ctx=2048) as batcher:
        info = await batcher.add_prefix(manual, name="manual")
        after = await asyncio.gather(*(batcher.generate(p, max_tokens=12) for p in prompts))
        assert [a.token_ids for a in after] == [b.token_ids for b in before]
        seam = 3  # tokens: around it the text may be cut in another way
        assert all(a.usage.cached_tokens >= info.n_tokens - seam for a in after)
