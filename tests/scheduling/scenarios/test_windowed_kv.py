"""An engine whose layers with a sliding window have fewer KV blocks than the rest."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_driver import Driver, numbers

from pybatcher.errors import EngineFailedError, RequestTooLongError
from pybatcher.scheduling import StepPlan
from pybatcher.scheduling.kv_allocator import appendable_blocks
from pybatcher.testing import FakeEngine

MOST = 3  # blocks that a step can append


class WindowedKv:
    """The KV of a fake engine, of which a step can append few blocks, and a copy have few tokens.

    copyable: most tokens of a sequence that another can start with.
    """

    def __init__(self, engine: FakeEngine, copyable: int = 10_000) -> None:
        self._engine, self._copyable = engine, copyable
        self.copied: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    @property
    def kv_appendable_blocks(self) -> int:
        return min(self._engine.kv_appendable_blocks, MOST)

    @property
    def kv_most_appendable_blocks(self) -> int:
        return MOST

    def seq_copyable(self, src: int, n_tokens: int) -> int:
        return n_tokens if n_tokens <= self._copyable else self._copyable // 16 * 16

    def seq_copy(self, src: int, dst: int, n_tokens: int) -> None:
        assert n_tokens == self.seq_copyable(src, n_tokens)
        self.copied.append(n_tokens)
        self._engine.seq_copy(src, dst, n_tokens)


def test_a_step_appends_no_more_than_windows_have_room_for() -> None:
    driver = Driver(kv=lambda engine: WindowedKv(engine), n_ctx=4096, n_batch=512)
    for i in range(3):
        driver.submit(i, numbers(200, i), max_tokens=40)
    driver.run()
    rows = [sum(len(entry.tokens) for entry in plan.entries) for plan in driver.plans]
    assert rows[0] == MOST * 16
    assert max(rows) < (MOST + 3) * 16  # what goes into the last blocks of three sequences is extra
    assert [len(driver.output(i)) for i in range(3)] == [40] * 3


def test_a_whole_input_has_to_fit_into_one_step() -> None:
    driver = Driver(kv=lambda engine: WindowedKv(engine), n_ctx=4096, n_batch=512)
    with pytest.raises(RequestTooLongError, match="sliding window have KV for 48: shorten it"):
        driver.submit(0, numbers(49), max_tokens=1, pooling="mean")
    driver.submit(1, numbers(48), max_tokens=1, pooling="mean")
    driver.submit(2, numbers(300), max_tokens=1, pooling="last")
    driver.run()
    assert driver.endings(1) == driver.endings(2) == ["answered"]


def test_a_follower_copies_what_is_still_there_and_computes_the_rest() -> None:
    kvs: list[WindowedKv] = []

    def windowed(engine: FakeEngine) -> WindowedKv:
        kvs.append(WindowedKv(engine, copyable=40))
        return kvs[-1]

    driver = Driver(kv=windowed, n_ctx=4096, n_batch=512)
    driver.submit(0, numbers(100), max_tokens=8)
    driver.submit(1, numbers(100), max_tokens=8)
    driver.run()
    assert kvs[0].copied == [32]
    assert driver.output(0) == driver.output(1)


def test_a_newcomers_window_takes_no_block_of_the_rows_before_it() -> None:
    """What a prefix hit holds of a window is missing for a prompt that is in the step already."""

    class Hits(WindowedKv):
        @property
        def kv_appendable_blocks(self) -> int:
            return MOST - 2 * (self._engine.used_sequences - 1)

    driver = Driver(kv=lambda engine: Hits(engine), n_ctx=4096, n_batch=512)
    driver.submit(0, numbers(40), max_tokens=2)
    driver.submit(1, numbers(10, 3), max_tokens=2)

    def has_no_room(plan: StepPlan) -> bool:
        assert Hits(driver.engine).kv_appendable_blocks >= 3  # of the 40 rows
        return False

    driver.step(fails=has_no_room)
    assert [len(entry.tokens) for entry in driver.plans[0].entries] == [40]
    driver.run()
    assert [len(driver.output(i)) for i in range(2)] == [2, 2]


def test_a_newcomer_that_cannot_copy_its_leaders_last_block_waits_for_the_next_step() -> None:
    """It is admitted, joins at once, and is preempted: not again and again in one step."""

    class Copies(WindowedKv):
        def __init__(self, engine: FakeEngine) -> None:
            super().__init__(engine)
            self.held: set[int] = set()  # sequences with a copy of a part of a block

        @property
        def kv_appendable_blocks(self) -> int:
            return MOST - len(self.held)

        def seq_copy(self, src: int, dst: int, n_tokens: int) -> None:
            super().seq_copy(src, dst, n_tokens)
            self.held.add(dst)

        def seq_remove(self, seq_id: int) -> None:
            self.held.discard(seq_id)
            self._engine.seq_remove(seq_id)

    driver = Driver(kv=Copies, n_ctx=4096, n_parallel=6, n_batch=512, max_prefixes=1)
    driver.scheduler.add_prefix(numbers(40))
    driver.step()
    driver.submit(0, numbers(200, 7), max_tokens=2)
    driver.submit(1, (*numbers(40), 5), max_tokens=2)
    driver.step()
    counts = driver.scheduler.statistics()
    assert (counts.preemptions, counts.running, counts.queued) == (1, 1, 1)
    driver.run()
    assert [driver.endings(i) for i in range(2)] == [["length"]] * 2


def test_a_count_that_fails_is_the_engines_failure() -> None:
    engine = FakeEngine(n_ctx=64, block_size=16)
    assert appendable_blocks(engine) == 4
    engine.close()
    with pytest.raises(EngineFailedError, match="did not count"):
        appendable_blocks(engine)
