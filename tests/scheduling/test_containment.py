"""An exception at any point where something is done for a request ends that one, and no other.

The points are found, not listed: every method of `KvAllocator`, and every function of the
scheduler that is called with the request, or the shared prefix, as an argument.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from scheduler_driver import Driver, FakeTile, numbers, prompt_with_images

import pybatcher.scheduling
from pybatcher.errors import EngineError, EngineFailedError, PybatcherError
from pybatcher.scheduling import Answered, Failed, KvAllocator, Request, Scheduler, SharedPrefix
from pybatcher.scheduling.request import LiveRequest
from pybatcher.testing import FakeEngine


class OwnError(Exception):
    """A type that nothing in the package knows."""


ERRORS = [TypeError, EngineError, MemoryError, OwnError]
ROOM = str(Path(pybatcher.scheduling.__file__).parent)
KV_METHODS = [name for name, _ in inspect.getmembers(KvAllocator, inspect.isfunction)]
KV_METHODS = [name for name in KV_METHODS if not name.startswith("_")]
KV_METHODS_CALLED = [name for name in KV_METHODS if name != "seq_length"]
KV_COUNTS = ["kv_free_blocks", "kv_cached_blocks", "kv_appendable_blocks"]

# Functions of a request's end. What they raise is the engine's failure, as KV may be lost.
ENDS = {
    "end",
    "fail",
    "_free",
    "discard",
    "_take_out",
    "fail_prefix",
    "_drop",
    "_end_faulty",
    "_complete",
    "release",
}

GENERATING, GIVEN, SCORED, EMBEDDED, LAST, EXPIRING = 0, 3, 10, 20, 21, 30
WITH_IMAGES = (40, 41)
VICTIMS = {"generating": GENERATING, "output given": GIVEN, "scored": SCORED, "embedded": EMBEDDED}
VICTIMS |= {"last embedded": LAST, "expiring": EXPIRING, "with images": WITH_IMAGES[0]}
VOCABULARY = 4  # so that drafts are accepted
PREFIX = tuple(i * i % 3 for i in range(20))


class FaultyKv:
    """The engine's KV, one of whose calls raises. calls: how many there were, by name."""

    def __init__(self, engine: FakeEngine, name: str, at: int, error: type[Exception]) -> None:
        self._engine, self._at, self._error = engine, (name, at), error
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        if name not in KV_METHODS:
            self._count(name)
            return getattr(self._engine, name)

        def method(*args: object, **named: object) -> object:
            self._count(name)
            return getattr(self._engine, name)(*args, **named)

        return method

    def _count(self, name: str) -> None:
        self.calls[name] += 1
        if (name, self.calls[name]) == self._at:
            raise self._error("injected")


class Points:
    """Functions of the scheduler that are called with the victim; one of the calls raises.

    victim: a request's id, or None for the shared prefix. at: (function, number of the call) that
    raises `error`. calls: by function, how many there were; with `at`, of its function alone.
    is_over: it has raised, and nothing is looked into any more.
    """

    def __init__(
        self,
        victim: int | None,
        at: tuple[CodeType, int] | None = None,
        error: type[Exception] = OwnError,
    ) -> None:
        self._victim, self._at, self._error = victim, at, error
        self.calls: Counter[CodeType] = Counter()
        self.is_over = False

    def watch(self, scheduler: Scheduler) -> Any:
        """The scheduler, whose calls are looked into."""
        return _Watched(scheduler, self)

    def tracer(self) -> Callable[[FrameType, str, object], None]:
        wanted = None if self._at is None else self._at[0]

        def see(frame: FrameType, event: str, arg: object) -> None:
            if wanted is None or frame.f_code is wanted:
                self._see(frame)

        return see

    def _see(self, frame: FrameType) -> None:
        code = frame.f_code
        caller = frame.f_back
        if caller is None or not _is_scheduler(code) or not _is_scheduler(caller.f_code):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if not any(self._is_victim(frame.f_locals.get(name)) for name in names):
            return
        self.calls[code] += 1
        if (code, self.calls[code]) == self._at:
            self.is_over = True
            raise self._error("injected")

    def _is_victim(self, value: object) -> bool:
        if isinstance(value, LiveRequest):
            value = value.request
        if isinstance(value, Request):
            return value.request_id == self._victim
        return isinstance(value, SharedPrefix) and self._victim is None


@cache
def _is_scheduler(code: CodeType) -> bool:
    """Its own code, but for the one place and what is made by the way, such as a list."""
    file = code.co_filename
    is_own = file.startswith(ROOM) and not file.endswith("containment.py")
    return is_own and code.co_name[0] != "<"


class _Watched:
    def __init__(self, scheduler: Scheduler, points: Points) -> None:
        self._scheduler, self._points = scheduler, points
        self._see = points.tracer()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._scheduler, name)
        return self._call(found) if inspect.ismethod(found) else found

    def _call(self, method: Callable[..., object]) -> Callable[..., object]:
        def called(*args: object, **named: object) -> object:
            with nullcontext() if self._points.is_over else traced(self._see):
                return method(*args, **named)

        return called


@contextmanager
def traced(see: Callable[[FrameType, str, object], None]) -> Iterator[None]:
    """Have `see` called with each call of a function in Python: a profiler sees all else too."""
    before = sys.gettrace()
    sys.settrace(see)
    try:
        yield
    finally:
        sys.settrace(before)


def make_driver(**options: Any) -> Driver:
    """Little KV, so that requests are preempted, and a vocabulary in which drafts are accepted."""
    return Driver(
        n_ctx=80,
        block_size=8,
        n_parallel=6,
        max_prefixes=1,
        n_batch=24,
        output_reserve=0,
        victim_policy="cheapest",
        vocab_size=VOCABULARY,
        max_draft_tokens=4,
        max_num_partial_prefills=2,
        itl_target=0.5,
        **options,
    )


def submit_all(driver: Driver, *, expiring: bool = False) -> dict[int, PybatcherError]:
    """Requests of every kind; returns the errors of those that were refused."""
    refused: dict[int, PybatcherError] = {}

    def submit(request_id: int, prompt: tuple[int, ...], **fields: Any) -> None:
        for name in {"targets", "output"} & set(fields):
            fields[name] = tuple(token % VOCABULARY for token in fields[name])
        if "images" not in fields:
            prompt = tuple(token % VOCABULARY for token in prompt)
        try:
            driver.submit(request_id, prompt, **fields)
        except PybatcherError as error:
            refused[request_id] = error

    circle = (5, 6, 7, 8) * 4
    submit(GENERATING, circle, max_tokens=14, logit_bias=None)
    submit(1, circle, max_tokens=9, temperature=1.0, seed=4)
    submit(2, (*PREFIX, 9), max_tokens=12)
    submit(GIVEN, numbers(11, 50), max_tokens=10, output=(1, 2, 3))
    submit(SCORED, numbers(40, 60), targets=numbers(30, 71))
    submit(11, numbers(12, 80), targets=(4, 5))
    submit(EMBEDDED, numbers(20, 90), pooling="mean")
    submit(LAST, (*PREFIX, 7, 7), pooling="last")
    for request_id, begin in zip(WITH_IMAGES, ((1, 2), (1, 3)), strict=True):
        prompt, images = prompt_with_images(begin, FakeTile(b"cat", 5), (0, 3), FakeTile(b"", 2))
        submit(request_id, prompt, images=images, max_tokens=6)
    if expiring:
        submit(EXPIRING, numbers(10, 44), max_tokens=40, deadline=driver.clock() + 0.1)
    return refused


def outcomes(driver: Driver) -> dict[int, object]:
    """What each request that did not fail was given."""
    ids = {event.request_id for event in driver.events}
    failed = {event.request_id for event in driver.events if isinstance(event, Failed)}
    found: dict[int, object] = {i: (driver.output(i), driver.endings(i)) for i in ids - failed}
    for event in driver.events:
        if isinstance(event, Answered):
            found[event.request_id] = (event.logprobs, event.vector and event.vector.tobytes())
    return found


def run(driver: Driver) -> list[Exception]:
    """Until nothing is left, with a restart for each failure of the engine; returns those."""
    failures: list[Exception] = []
    while True:
        try:
            if not driver.step():
                break
        except (AssertionError, RuntimeWarning):
            raise
        except Exception as error:
            failures.append(error)
            assert len(failures) < 3
            driver.events += driver.scheduler.step_failed(error)
            driver.engine.restart()
    assert driver.scheduler.is_idle
    assert driver.scheduler.n_waiting == 0
    return failures


def scenario(driver: Driver, *, expiring: bool = False) -> tuple[set[int], list[Exception]]:
    """All of it; returns who failed (None: the prefix) and the engine's failures."""
    prefix = None
    faulty: dict[int | None, BaseException] = {}
    try:
        prefix = driver.scheduler.add_prefix(PREFIX)
    except PybatcherError as error:
        faulty[None] = error
    faulty |= submit_all(driver, expiring=expiring)
    failures = run(driver)
    for event in driver.events:
        if isinstance(event, Failed):
            assert event.request_id not in faulty, "it failed twice"
            faulty[event.request_id] = event.error
    if prefix is not None:
        if prefix.error is not None:
            faulty[None] = prefix.error
        try:
            driver.scheduler.remove_prefix(prefix)
        except Exception as error:
            failures.append(error)
            driver.scheduler.step_failed(error)
            driver.engine.restart()
            driver.scheduler.drop_prefixes()
    assert not driver.scheduler.prefixes
    assert all(isinstance(error, PybatcherError) for error in faulty.values())
    driver.check_nothing_held()
    counts = driver.scheduler.statistics()
    ended = counts.completed + counts.cancelled + counts.expired + counts.failed
    assert counts.submitted == ended
    assert counts.queued == counts.running == counts.queued_tokens == 0
    assert all(len(driver.endings(i)) == 1 for i in {event.request_id for event in driver.events})
    return set(faulty), failures


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, object]:
    driver = make_driver()
    assert scenario(driver) == (set(), [])
    counts = driver.scheduler.statistics()
    assert counts.preemptions > 0
    assert counts.accepted_tokens > 0
    assert counts.cached_tokens > 0
    return outcomes(driver)


def check_the_others(driver: Driver, faulty: set[Any], undisturbed: dict[int, object]) -> None:
    given = outcomes(driver)
    given.pop(EXPIRING, None)
    assert given == {i: what for i, what in undisturbed.items() if i not in faulty}


def some(count: int) -> list[int]:
    """Numbers of a few of so many calls, the first and the last among them."""
    return sorted({1, 2, 3, count // 2, count - 1, count} & set(range(1, count + 1)))


@pytest.mark.parametrize("name", KV_METHODS_CALLED)
@pytest.mark.parametrize("error", ERRORS)
def test_a_kv_call_that_raises_ends_one_request(
    name: str, error: type[Exception], undisturbed: dict[int, object]
) -> None:
    count = calls_of_kv()[name]
    assert count, f"{name} is not called in the scenario"
    kinds: set[int | None] = set()
    for at in some(count):
        driver = make_driver(kv=lambda engine, at=at: FaultyKv(engine, name, at, error))
        faulty, failures = scenario(driver)
        if name == "seq_remove":
            assert [type(failure) for failure in failures] == [EngineFailedError], at
            assert not faulty
        else:
            assert not failures
            assert len(faulty) == 1, at
        check_the_others(driver, faulty, undisturbed)
        kinds |= faulty
    assert name not in ("seq_new", "seq_match") or None in kinds, "the prefix was among them"


@pytest.mark.parametrize("name", KV_COUNTS)
@pytest.mark.parametrize("error", ERRORS)
def test_what_belongs_to_no_request_is_the_engines_failure(
    name: str, error: type[Exception], undisturbed: dict[int, object]
) -> None:
    count = calls_of_kv()[name]
    assert count, f"{name} is not read in the scenario"
    for at in some(count):
        driver = make_driver(kv=lambda engine, at=at: FaultyKv(engine, name, at, error))
        faulty, failures = scenario(driver)
        assert [type(failure) for failure in failures] == [EngineFailedError]
        assert not faulty
        check_the_others(driver, faulty, undisturbed)


@cache
def calls_of_kv() -> Counter[str]:
    """Return how often the scenario calls each method of the KV, and reads each of its counts."""
    made: list[FaultyKv] = []

    def kv(engine: FakeEngine) -> Any:
        made.append(FaultyKv(engine, "", 0, OwnError))
        return made[0]

    driver = make_driver(kv=kv)
    made[0].calls.clear()  # the facts that are asked at the start
    scenario(driver)
    return made[0].calls


def watched(points: Points) -> Driver:
    driver = make_driver()
    driver.scheduler = points.watch(driver.scheduler)
    return driver


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*VICTIMS, "prefix"])
def test_an_exception_at_any_point_ends_only_the_request(
    kind: str, undisturbed: dict[int, object]
) -> None:
    victim = VICTIMS.get(kind)
    points = Points(victim)
    scenario(watched(points), expiring=kind == "expiring")
    calls = dict(points.calls)
    assert len(calls) >= (8 if victim is None else 15)
    n_contained = 0
    for i, (function, count) in enumerate(calls.items()):
        for at in sorted({1, count}):
            driver = watched(Points(victim, (function, at), ERRORS[i % len(ERRORS)]))
            faulty, failures = scenario(driver, expiring=kind == "expiring")
            where = f"{function.co_qualname}, call {at}"
            assert faulty <= {victim}, where
            if failures:
                assert function.co_name in ENDS, where
            else:
                n_contained += 1
                is_over = kind == "expiring" and driver.endings(EXPIRING) == ["expired"]
                assert faulty == {victim} or is_over, where
            check_the_others(driver, faulty, undisturbed)
    assert n_contained > len(calls)
