"""`Engine` among threads and processes, and after its end."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_helpers import OPTIONS, VOCAB, ids, plan

from pybatcher import errors
from pybatcher.engine import Engine

# -- threads, processes, the end -------------------------------------------------------------------


def test_calls_from_threads_take_turns(engine: Engine) -> None:
    expected = engine.prefill_chunk(engine.seq_new(), ids(60), logits=True)
    engine.seq_remove(0)
    wrong: list[object] = []

    def work(space: str) -> None:
        for _ in range(15):
            seq_id = engine.seq_new(space)
            if not np.array_equal(engine.prefill_chunk(seq_id, ids(60), logits=True), expected):
                wrong.append(space)
            engine.seq_remove(seq_id)

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert engine.used_sequences == 0


def test_computing_holds_neither_the_gil_nor_the_counters(checkpoint: Path) -> None:
    engine = Engine.load(checkpoint, n_threads=1, n_ctx=16384, n_parallel=40, n_ubatch=512)
    seq_ids = [engine.seq_new(str(i)) for i in range(40)]
    step = plan(*((seq_id, ids(199, seq_id), False) for seq_id in seq_ids))
    thread = threading.Thread(target=engine.step, args=(step,))
    asked = 0
    thread.start()
    while thread.is_alive():
        engine.statistics()
        assert engine.kv_free_blocks <= engine.kv_total_blocks
        asked += 1
        time.sleep(0)
    thread.join()
    assert asked > 10
    assert engine.statistics()["computed_tokens"] == 40 * 199
    engine.close()


def test_close(checkpoint: Path) -> None:
    engine = Engine.load(checkpoint, **OPTIONS)
    seq_id = engine.seq_new()
    engine.prefill_chunk(seq_id, ids(5))
    engine.close()
    engine.close()
    for call in (
        lambda: engine.seq_new(),
        lambda: engine.seq_length(seq_id),
        lambda: engine.seq_remove(seq_id),
        lambda: engine.seq_copy(seq_id, 1, 1),
        lambda: engine.seq_match(seq_id, [1]),
        lambda: engine.seq_sampling(seq_id, None),
        lambda: engine.prefill_chunk(seq_id, [1]),
        lambda: engine.decode_batch([seq_id], [1]),
        lambda: engine.step(plan((seq_id, [1], True))),
        lambda: engine.embed(seq_id, [1]),
        lambda: engine.check_integrity(),
        lambda: engine.restart(),
        lambda: engine.statistics(),
        lambda: engine.kv_free_blocks,
        lambda: engine.kv_cached_blocks,
    ):
        with pytest.raises(errors.EngineError, match="closed"):
            call()
    assert engine.vocab_size == VOCAB


def _use_in_child(engine: Engine, results: Any) -> None:
    said = []
    for call in (engine.seq_new, engine.statistics, engine.close):
        try:
            call()
        except errors.EngineError as error:
            said.append(str(error))
    del engine
    results.put(said)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_is_told_what_to_do(engine: Engine) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_use_in_child, args=(engine, results))
    child.start()
    said = results.get(timeout=60)
    child.join(timeout=60)
    assert child.exitcode == 0
    assert len(said) == 3
    assert all("fork" in text and "spawn" in text for text in said)
    assert engine.seq_new() == 0


# -- a new start -----------------------------------------------------------------------------------


def test_restart_forgets_all_but_weights_and_statistics(engine: Engine) -> None:
    expected = engine.prefill_chunk(engine.seq_new(), ids(60), logits=True)
    other = engine.seq_new()
    engine.prefill_chunk(other, ids(40, 1))
    engine.seq_remove(other)
    assert engine.kv_cached_blocks == 2
    counts = engine.statistics()
    engine.restart()
    assert engine.statistics() == counts
    assert (engine.used_sequences, engine.kv_cached_blocks) == (0, 0)
    assert engine.kv_free_blocks == engine.kv_total_blocks
    with pytest.raises(errors.InvalidRequestError):
        engine.seq_length(0)
    seq_id = engine.seq_new()
    assert engine.seq_match(seq_id, ids(60)) == 0
    assert np.array_equal(engine.prefill_chunk(seq_id, ids(60), logits=True), expected)


def test_restart_among_threads(engine: Engine) -> None:
    """A call is either before the restart, or finds its sequence gone."""
    stop = threading.Event()
    wrong: list[BaseException] = []

    def work(space: str) -> None:
        while not stop.is_set():
            try:
                engine.prefill_chunk(engine.seq_new(space), ids(60))
            except (errors.InvalidRequestError, errors.EngineError):
                pass
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        engine.restart()
        engine.check_integrity()
    stop.set()
    for thread in threads:
        thread.join()
    engine.restart()
    assert not wrong
    assert engine.kv_free_blocks == engine.kv_total_blocks
