"""Hostile calls of the compiled engine: typed errors, the engine alive, nothing leaked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from attacked_engine import OPTIONS, PROMPT
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pybatcher import errors
from pybatcher.engine import Engine
from pybatcher.loading import LoadedModel
from pybatcher.params.config import EngineConfig


@pytest.fixture(scope="module")
def shared(model: LoadedModel) -> Iterator[Engine]:
    engine = Engine.from_loaded(model, EngineConfig(**OPTIONS))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def expected(shared: Engine) -> NDArray[np.float32]:
    """Logits after PROMPT, before anybody was hostile."""
    seq_id = shared.seq_new("first of all")
    logits = shared.prefill_chunk(seq_id, PROMPT, logits=True)
    shared.seq_remove(seq_id)
    return logits


@pytest.fixture
def engine(shared: Engine, expected: NDArray[np.float32]) -> Iterator[Engine]:
    """After each test: whole, empty, and right."""
    yield shared
    assert_well(shared, expected)


def assert_well(engine: Engine, expected: NDArray[np.float32]) -> None:
    for seq_id in range(engine.n_parallel):
        with suppress(errors.InvalidRequestError):
            engine.seq_remove(seq_id)
    engine.check_integrity()
    assert engine.used_sequences == 0
    assert engine.kv_free_blocks + engine.kv_cached_blocks == engine.kv_total_blocks
    seq_id = engine.seq_new("after the attack")
    np.testing.assert_array_equal(engine.prefill_chunk(seq_id, PROMPT, logits=True), expected)
    engine.seq_remove(seq_id)


# -- any value in any place -------------------------------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-2, 90),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.builds(np.int64, st.integers(-(2**63), 2**63 - 1)),
    st.builds(np.float32, st.floats(width=32)),
)
dtypes = ["i1", "u1", "<i4", ">i4", "i8", "u8", "f4", "f8", "?", "S2", "U2", "O", "c8", "M8[s]"]
arrays = st.builds(
    lambda dtype, shape: np.zeros(shape, dtype=dtype),
    st.sampled_from(dtypes),
    st.lists(st.integers(0, 3), max_size=3),
)
anything = st.one_of(
    scalars,
    arrays,
    st.lists(scalars, max_size=4),
    st.lists(st.integers(0, 400), max_size=90),
    st.dictionaries(st.integers(0, 3), scalars, max_size=2),
)
good_ids = st.integers(0, 2)
METHODS: dict[str, int] = {
    "seq_new": 1,
    "seq_copy": 3,
    "seq_remove": 3,
    "seq_length": 1,
    "seq_exclusive_blocks": 1,
    "seq_match": 2,
    "prefill_chunk": 2,
    "decode_batch": 2,
    "embed": 3,
    "run_step": 3,
    "set_sampling": 1,
}


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_arguments(shared: Engine, expected: NDArray[np.float32], data: st.DataObject) -> None:
    for _ in range(6):
        name = data.draw(st.sampled_from(sorted(METHODS)))
        arguments = [
            data.draw(st.one_of(good_ids, anything)) for _ in range(data.draw(st.integers(0, 7)))
        ]
        with suppress(errors.PybatcherError, TypeError):
            getattr(shared, name)(*arguments)
        shared.check_integrity()
    assert_well(shared, expected)


def test_bytes_that_are_no_text_are_quoted_as_escapes(
    shared: Engine, expected: NDArray[np.float32]
) -> None:
    seq_id = shared.seq_new()
    with pytest.raises(errors.InvalidRequestError, match=r"\\x80"):
        shared.embed(seq_id, [1], b"\x80")  # type: ignore[arg-type]
    shared.seq_remove(seq_id)
    assert_well(shared, expected)


# -- values that turn on whoever converts them --------------------------------------------------


class Liar:
    """An "integer" that does something else while it is converted."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def __index__(self) -> int:
        self.act()
        return 1


def test_an_item_that_changes_its_list(engine: Engine) -> None:
    seq_id = engine.seq_new()
    tokens: list[Any] = [1, 2, 3]
    tokens[0] = Liar(tokens.clear)
    engine.prefill_chunk(seq_id, tokens)
    assert engine.seq_length(seq_id) == 3


def test_an_item_that_calls_theshared(engine: Engine) -> None:
    seq_id = engine.seq_new()
    tokens: list[Any] = [Liar(lambda: engine.seq_remove(seq_id)), 2]
    with pytest.raises(errors.InvalidRequestError, match="seq_id"):
        engine.prefill_chunk(seq_id, tokens)


def test_an_item_that_raises(engine: Engine) -> None:
    def act() -> None:
        raise ZeroDivisionError

    seq_id = engine.seq_new()
    with pytest.raises(errors.InvalidRequestError, match=r"tokens\[1\]"):
        engine.prefill_chunk(seq_id, [1, Liar(act)])  # type: ignore[list-item]


def test_an_array_that_changes_during_the_call(engine: Engine) -> None:
    """Ids are copied before they are checked: nobody can swap them in between."""
    tokens = np.zeros(60, dtype=np.int32)
    stop = threading.Event()

    def scribble() -> None:
        while not stop.is_set():
            tokens[:] = 2**31 - 1
            tokens[:] = 0

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        for _ in range(50):
            seq_id = engine.seq_new()
            try:
                engine.prefill_chunk(seq_id, tokens)
            except errors.InvalidRequestError:
                assert engine.seq_length(seq_id) == 0
            engine.seq_remove(seq_id)
    finally:
        stop.set()
        thread.join()


# -- lives of an id ----------------------------------------------------------------------------


def test_freed_twice(engine: Engine) -> None:
    seq_id = engine.seq_new()
    engine.prefill_chunk(seq_id, PROMPT)
    engine.seq_remove(seq_id)
    with pytest.raises(errors.InvalidRequestError):
        engine.seq_remove(seq_id)
    with pytest.raises(errors.InvalidRequestError):
        engine.decode_batch([seq_id], [1])


def test_threads_that_fight_over_one_sequence(engine: Engine) -> None:
    """Everybody removes, appends and copies the same ids: some calls fail, nothing breaks."""
    unexpected: list[BaseException] = []

    def fight(salt: int) -> None:
        rng = np.random.default_rng(salt)
        for _ in range(60):
            a, b = (int(i) for i in rng.integers(0, 3, 2))
            calls: list[Callable[[], object]] = [
                engine.seq_new,
                partial(engine.seq_remove, a),
                partial(engine.prefill_chunk, a, PROMPT),
                partial(engine.seq_copy, a, b, 5),
                partial(engine.decode_batch, [a, b], [1, 2]),
                partial(engine.embed, a, PROMPT),
                engine.check_integrity,
            ]
            call = calls[int(rng.integers(len(calls)))]
            try:
                call()
            except errors.PybatcherError as error:
                if call == engine.check_integrity:
                    unexpected.append(error)
            except BaseException as error:
                unexpected.append(error)

    threads = [threading.Thread(target=fight, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not unexpected


def test_close_under_a_running_call(model: LoadedModel) -> None:
    engine = Engine.from_loaded(model, EngineConfig(**{**OPTIONS, "n_ctx": 4096}))
    ended: list[str] = []

    def work(space: str) -> None:
        try:
            while True:
                seq_id = engine.seq_new(space)
                engine.prefill_chunk(seq_id, PROMPT * 9)
                engine.seq_remove(seq_id)
        except errors.EngineError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(3)]
    for thread in threads:
        thread.start()
    while engine.statistics()["forward_passes"] < 10:
        pass
    engine.close()
    for thread in threads:
        thread.join()
    assert ended == ["this engine is closed; load a new one"] * 3
