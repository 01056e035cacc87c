"""Whether a worker hangs, told from ticks and beats alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybatcher.sidecar.front.watchdog import Watchdog

MOST = 5  # ticks in a row that nobody is accused for
BEATS = st.tuples(st.booleans(), st.integers(0, 3))
HISTORIES = st.lists(st.one_of(st.none(), BEATS), max_size=60)  # None: a tick


def watchdog() -> Watchdog:
    """Of a worker that was heard of."""
    dog = Watchdog(hang_timeout=MOST * 0.25, start_timeout=10 * MOST * 0.25, period=0.25)
    dog.beat(False, 0)
    return dog


def after(history: list[tuple[bool, int] | None]) -> Watchdog:
    dog = watchdog()
    for entry in history:
        if entry is None:
            dog.tick()
        else:
            dog.beat(*entry)
    return dog


def accused_of(dog: Watchdog, n_ticks: int, *beats: tuple[bool, int]) -> list[str | None]:
    """What each of `n_ticks` says, the beats coming in turn before them."""
    said = []
    for i in range(n_ticks):
        if beats:
            dog.beat(*beats[i % len(beats)])
        said.append(dog.tick())
    return said


def test_silence_is_a_hang_and_a_beat_ends_it() -> None:
    dog = watchdog()
    *before, last = accused_of(dog, MOST + 1)
    assert before == [None] * MOST
    assert last == "it has not been heard of for hang_timeout = 1.25 s"
    assert dog.tick() == last
    dog.beat(False, 0)
    assert dog.tick() is None


def test_computing_without_progress_is_a_hang_though_beats_come() -> None:
    dog = watchdog()
    *before, last = accused_of(dog, MOST + 1, (True, 7))
    assert before == [None] * MOST
    expected = "it has been computing without progress for hang_timeout = 1.25 s"
    assert last == expected
    dog.beat(True, 8)
    assert dog.tick() is None


def test_neither_idling_nor_progress_is_a_hang() -> None:
    assert set(accused_of(watchdog(), 20 * MOST, (False, 7))) == {None}
    assert set(accused_of(watchdog(), 20 * MOST, (True, 7), (True, 8))) == {None}
    # The same progress, but two jobs.
    assert set(accused_of(watchdog(), 20 * MOST, (True, 7), (True, 7), (False, 7))) == {None}


def test_a_job_that_begins_after_idling_has_the_whole_time() -> None:
    dog = watchdog()
    accused_of(dog, 3 * MOST, (False, 7))
    accused_of(dog, MOST - 1)  # a beat that is late
    assert accused_of(dog, MOST + 1, (True, 7))[:-1] == [None] * MOST


def test_a_time_that_periods_do_not_divide_is_not_cut_short() -> None:
    dog = Watchdog(hang_timeout=1.0, start_timeout=60.0, period=0.3)
    dog.beat(False, 0)
    said = accused_of(dog, 5)  # the first tick may come right after a beat: 4 periods are 1.2 s
    assert said[:4] == [None] * 4
    assert said[4] is not None


def test_a_worker_that_is_being_started_has_longer_until_its_first_beat() -> None:
    dog = watchdog()
    dog.begin()
    *before, last = accused_of(dog, 10 * MOST + 1)
    assert before == [None] * 10 * MOST
    assert last == "it has said nothing for 12.5 s since its start"
    dog.begin()
    assert set(accused_of(dog, 10 * MOST)) == {None}
    dog.beat(False, 0)
    assert accused_of(dog, MOST + 1)[-1] is not None


@pytest.mark.parametrize("beats", [(), ((True, 7),)])
def test_reset_forgets(beats: tuple[tuple[bool, int], ...]) -> None:
    dog = watchdog()
    assert accused_of(dog, MOST + 1, *beats)[-1] is not None
    dog.reset()
    assert accused_of(dog, MOST + 1, *beats)[:-1] == [None] * MOST


@given(HISTORIES, BEATS)
def test_a_watcher_that_was_stopped_accuses_nobody(
    history: list[tuple[bool, int] | None], beat: tuple[bool, int]
) -> None:
    """However long it was: one tick is due, and the beats that came meanwhile are read."""
    dog = watchdog()
    for entry in history:
        if entry is None:
            # Stopped here, for as long as you like; a worker that lives has come further.
            assert dog.tick() is None
            dog.beat(beat[0], dog._progress + 1 if dog._progress is not None else 0)
        else:
            dog.beat(*entry)


@given(HISTORIES)
def test_after_any_history_silence_is_noticed_in_time(
    history: list[tuple[bool, int] | None],
) -> None:
    dog = after(history)
    assert accused_of(dog, MOST + 1)[-1] is not None


@given(HISTORIES, st.integers(0, 3))
def test_after_any_history_a_stuck_engine_is_noticed_in_time(
    history: list[tuple[bool, int] | None], progress: int
) -> None:
    dog = after(history)
    assert accused_of(dog, MOST + 1, (True, progress))[-1] is not None


@given(HISTORIES, st.integers(0, 3))
def test_whoever_is_accused_had_the_whole_time(
    history: list[tuple[bool, int] | None], progress: int
) -> None:
    """Of any history: an accusation has so many ticks behind it without a sign of life."""
    dog = watchdog()
    last: tuple[bool, int] | None = None
    silent = stuck = 0
    for entry in history:
        if entry is None:
            silent, stuck = silent + 1, stuck + 1
            if dog.tick() is not None:
                assert silent > MOST or (stuck > MOST and last is not None and last[0])
        else:
            silent = 0
            if entry != last or not entry[0]:
                stuck = 0
            last = entry
            dog.beat(*entry)
