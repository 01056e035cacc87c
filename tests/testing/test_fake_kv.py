"""The bookkeeping behind `FakeEngine`: blocks are shared, copied and evicted as an engine's are."""

from __future__ import annotations

import pytest

from pybatcher.errors import (
    EngineError,
    InvalidRequestError,
    KvCacheFullError,
    NoFreeSequenceError,
)
from pybatcher.testing.fake_kv import FakeKv


@pytest.fixture
def kv() -> FakeKv:
    """Six blocks of four positions, three sequences."""
    return FakeKv(6, 4, 3, 40)


def held(kv: FakeKv, *tokens: int, namespace: str = "") -> int:
    seq_id = kv.new(namespace)
    kv.append({seq_id: tokens})
    return seq_id


def test_ids_are_the_lowest_free_ones(kv: FakeKv) -> None:
    assert [kv.new(""), kv.new(""), kv.new("")] == [0, 1, 2]
    with pytest.raises(NoFreeSequenceError, match="all 3 sequences"):
        kv.new("")
    kv.remove(1, 0, -1)
    assert kv.new("") == 1


def test_full_blocks_are_shared_by_a_copy_and_a_partial_one_is_not(kv: FakeKv) -> None:
    source, target = held(kv, *range(6)), kv.new("")
    kv.copy(source, target, 6)
    assert (kv.free_blocks, kv.exclusive_blocks(source)) == (3, 1)
    kv.append({target: (7,)})
    assert kv.tokens(source) == [0, 1, 2, 3, 4, 5]
    assert kv.tokens(target) == [0, 1, 2, 3, 4, 5, 7]
    kv.check_integrity()


def test_what_was_removed_is_found_again_inside_its_namespace_only(kv: FakeKv) -> None:
    kv.remove(held(kv, *range(9), namespace="a"), 0, -1)
    assert (kv.free_blocks, kv.cached_blocks) == (4, 2)
    assert kv.match(kv.new("b"), range(9)) == 0
    again = kv.new("a")
    assert kv.match(again, range(8)) == 4, "the last token has to be computed"
    assert kv.tokens(again) == [0, 1, 2, 3]
    kv.check_integrity()


def test_cached_blocks_give_way_and_a_call_that_raises_changes_nothing(kv: FakeKv) -> None:
    kv.remove(held(kv, *range(8)), 0, -1)
    seq_id = held(kv, *range(50, 70))
    assert (kv.free_blocks, kv.cached_blocks) == (0, 1)
    with pytest.raises(KvCacheFullError):
        kv.append({seq_id: (0,) * 5})
    assert kv.length(seq_id) == 20
    assert kv.cached_blocks == 1
    kv.check_integrity()


@pytest.mark.parametrize("call", [lambda kv: kv.length(2), lambda kv: kv.remove(2, 0, -1)])
def test_an_id_that_is_not_in_use_is_refused(kv: FakeKv, call: object) -> None:
    with pytest.raises(InvalidRequestError, match="seq_id"):
        call(kv)


def test_a_block_that_nobody_counts_is_noticed(kv: FakeKv) -> None:
    held(kv, 1, 2, 3)
    kv.free_blocks += 1
    with pytest.raises(EngineError):
        kv.check_integrity()
