"""Threads that share an engine, a cache, masks and the lists they pass; without a GIL, at one time.

Every call returns or raises a typed error, and what they share is whole afterwards.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

from pybatcher import Engine
from pybatcher._core import KvCache, TokenMasks
from pybatcher.errors import PybatcherError
from pybatcher.models import tiny_path

SECONDS = 1.0
N_THREADS = 4

Act = Callable[[random.Random], object]
pytestmark = pytest.mark.slow


def share(acts: list[Act]) -> None:
    """Has threads do acts at random. What they raise but refusals is raised here."""
    defects: list[BaseException] = []
    done: list[set[int]] = []
    end = time.monotonic() + SECONDS

    def act(seed: int) -> None:
        rng = random.Random(seed)
        succeeded: set[int] = set()
        while time.monotonic() < end and not defects:
            i = rng.randrange(len(acts))
            try:
                acts[i](rng)
                succeeded.add(i)
            except PybatcherError:
                pass
            except BaseException as defect:
                defects.append(defect)
        done.append(succeeded)

    threads = [threading.Thread(target=act, args=(seed,)) for seed in range(N_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for defect in defects:
        raise defect
    assert set.union(*done) == set(range(len(acts))), "an act never succeeded"


def is_whole(check_integrity: Callable[[], None]) -> Act:
    """The act of looking into an object; what that finds is no refusal."""

    def act(rng: random.Random) -> None:
        try:
            check_integrity()
        except PybatcherError as defect:
            raise AssertionError("it is no longer whole") from defect

    return act


class Lists:
    """Lists of token ids that become longer and shorter while others pass them on."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._lists = [[1, 2, 3, 4] for _ in range(4)]

    def any(self, rng: random.Random) -> list[int]:
        return rng.choice(self._lists)

    def change(self, rng: random.Random) -> None:
        tokens = self.any(rng)
        if len(tokens) > 4:
            del tokens[rng.randrange(1, 4) :]
        else:
            tokens.extend(rng.randrange(self._vocab_size) for _ in range(20))


def test_an_engine() -> None:
    engine = Engine.load(tiny_path(), n_ctx=2048, n_parallel=6, n_threads=1)
    n, vocab_size = engine.n_parallel, engine.vocab_size
    lists = Lists(vocab_size)
    bias = {1: 1.0}

    def change_bias(rng: random.Random) -> None:
        bias[rng.randrange(vocab_size)] = 1.0
        if len(bias) > 50:
            bias.clear()

    share(
        [
            lists.change,
            change_bias,
            lambda rng: engine.seq_new(rng.choice(["", "a"])),
            lambda rng: engine.seq_copy(rng.randrange(n), rng.randrange(n), rng.randrange(20)),
            lambda rng: engine.seq_remove(rng.randrange(n), rng.choice([0, 0, 3])),
            lambda rng: engine.seq_match(rng.randrange(n), lists.any(rng)),
            lambda rng: engine.prefill_chunk(rng.randrange(n), lists.any(rng)),
            lambda rng: engine.decode_batch([rng.randrange(n)], [rng.randrange(vocab_size)]),
            lambda rng: engine.set_sampling(rng.randrange(n), temperature=1.0, logit_bias=bias),
            lambda rng: (engine.statistics(), engine.seq_length(rng.randrange(n))),
            lambda rng: (engine.kv_free_blocks, engine.used_sequences, engine.progress),
            is_whole(engine.check_integrity),
            lambda rng: engine.restart() if rng.random() < 0.02 else None,
        ]
    )
    engine.check_integrity()
    engine.close()


def test_an_engine_that_is_closed_meanwhile() -> None:
    def use_and_close(rng: random.Random) -> None:
        engine = Engine.load(tiny_path(), n_ctx=256, n_parallel=2, n_threads=1)
        problems: list[BaseException] = []

        def use() -> None:
            try:
                for _ in range(20):
                    engine.prefill_chunk(engine.seq_new(), [1, 2, 3])
            except PybatcherError:
                pass
            except BaseException as problem:
                problems.append(problem)

        users = [threading.Thread(target=use) for _ in range(2)]
        for user in users:
            user.start()
        engine.close()
        for user in users:
            user.join()
        assert not problems

    share([use_and_close])


def test_a_cache() -> None:
    n = 5
    cache = KvCache(
        n_blocks=40, block_size=4, n_parallel=n, max_length=100, copy_block=lambda *_: None
    )
    lists = Lists(100)
    share(
        [
            lists.change,
            lambda rng: cache.seq_new(),
            lambda rng: cache.seq_copy(rng.randrange(n), rng.randrange(n), rng.randrange(20)),
            lambda rng: cache.seq_remove(rng.randrange(n), rng.choice([0, 0, 3])),
            lambda rng: cache.seq_match(rng.randrange(n), lists.any(rng)),
            lambda rng: cache.reserve(rng.randrange(n), lists.any(rng)),
            lambda rng: cache.commit(rng.randrange(n)),
            lambda rng: cache.rollback(rng.randrange(n)),
            lambda rng: (cache.block_table(rng.randrange(n)), cache.tokens(rng.randrange(n))),
            lambda rng: (cache.free_blocks, cache.cached_blocks, cache.appendable_blocks),
            lambda rng: cache.drop_cached(),
            # Others come in while copy_block, which is Python, runs: it is whole at the end alone.
            lambda rng: cache.check_integrity(),
        ]
    )
    cache.check_integrity()


def test_masks() -> None:
    masks = TokenMasks(4, 384)
    share(
        [
            lambda rng: masks.close(),
            lambda rng: masks.open(),
            lambda rng: (masks.address, masks.n_rows, masks.row_bytes),
        ]
    )
