"""The KV bookkeeping, `pybatcher._core.KvCache`: random histories against a plain model of it.

The model (kv_model.py) predicts what every call returns, raises and changes. A simulated storage
holds at each position a hash of all tokens up to it, as keys and values do. The test writes it
where the engine would, block copies use the cache's own callback, and after every step each
sequence must read back its own history: no block is written while another sequence reads it.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from kv_model import Block, Model, Sequence, keys_and_values

from pybatcher import _core
from pybatcher.errors import (
    ConfigError,
    EngineError,
    InvalidRequestError,
    KvCacheFullError,
    NoFreeSequenceError,
    RequestTooLongError,
)

pytestmark = pytest.mark.slow

FULL_HASH = 2**64 - 1


# Mostly beginnings of a few texts, so that histories often share theirs.
texts = st.sampled_from([[0] * 14, [0, 0, 0, 0, 1] * 3, [0, 1] * 7])
token_lists = st.one_of(
    st.builds(lambda text, n: text[:n], texts, st.integers(1, 14)),
    st.lists(st.integers(0, 1), min_size=1, max_size=14),
)
picks = st.integers(0, 5)
namespaces = st.sampled_from(["", "", "other", None])  # None: common to all


class KvCacheMachine(RuleBasedStateMachine):
    cache: _core.KvCache

    @initialize(
        n_blocks=st.one_of(st.integers(1, 5), st.integers(1, 16)),
        block_size=st.integers(1, 4),
        n_parallel=st.integers(2, 5),
        max_length=st.sampled_from([7, 16, 40]),
        hash_mask=st.sampled_from([FULL_HASH, 3, 0]),
    )
    def make(
        self, n_blocks: int, block_size: int, n_parallel: int, max_length: int, hash_mask: int
    ) -> None:
        self.storage = [[0] * block_size for _ in range(n_blocks)]
        self.cache = _core.KvCache(
            n_blocks=n_blocks,
            block_size=block_size,
            n_parallel=n_parallel,
            max_length=max_length,
            copy_block=self.copy_block,
            hash_mask=hash_mask,
        )
        self.model = Model(n_blocks, block_size)
        self.sequences: dict[int, Sequence] = {}

    def copy_block(self, group: int, source: int, target: int) -> None:
        self.storage[target] = list(self.storage[source])

    # -- which sequences a rule may take

    def settled(self) -> list[int]:
        return sorted(i for i, s in self.sequences.items() if s.blocks_before is None)

    def filled(self) -> list[int]:
        return [i for i in self.settled() if self.sequences[i].tokens]

    def empty(self) -> list[int]:
        return [i for i in self.settled() if not self.sequences[i].tokens]

    def reserved(self) -> list[int]:
        return sorted(set(self.sequences) - set(self.settled()))

    def free_ids(self) -> list[int]:
        return sorted(set(range(self.cache.n_parallel)) - set(self.sequences))

    # -- sequences

    @precondition(lambda self: self.free_ids())
    @rule(namespace=namespaces)
    def seq_new(self, namespace: str | None) -> None:
        self.new(namespace)

    @precondition(lambda self: not self.free_ids())
    @rule(namespace=namespaces)
    def seq_new_when_all_are_in_use(self, namespace: str | None) -> None:
        with pytest.raises(NoFreeSequenceError):
            self.cache.seq_new(namespace or "", common=namespace is None)

    @precondition(lambda self: self.filled() and self.free_ids())
    @rule(pick=picks, share=st.floats(0, 1), namespace=namespaces)
    def seq_copy(self, pick: int, share: float, namespace: str | None) -> None:
        src = self.filled()[pick % len(self.filled())]
        source = self.sequences[src]
        dst = self.new(namespace)
        if source.namespace not in (None, namespace):
            with pytest.raises(InvalidRequestError, match="can only be copied within its own"):
                self.cache.seq_copy(src, dst, 0)
            return
        n_tokens = round(share * len(source.tokens))
        if self.model.copy(source, self.sequences[dst], n_tokens):
            self.cache.seq_copy(src, dst, n_tokens)
        else:
            with pytest.raises(KvCacheFullError):
                self.cache.seq_copy(src, dst, n_tokens)

    @precondition(lambda self: self.settled())
    @rule(pick=picks)
    def seq_remove(self, pick: int) -> None:
        seq_id = self.settled()[pick % len(self.settled())]
        exclusive = self.cache.seq_exclusive_blocks(seq_id)
        available = self.cache.free_blocks + self.cache.cached_blocks
        self.cache.seq_remove(seq_id)
        assert self.cache.free_blocks + self.cache.cached_blocks == available + exclusive
        self.model.truncate(self.sequences.pop(seq_id), 0)

    @precondition(lambda self: self.filled())
    @rule(pick=picks, share=st.floats(0, 1), names_end=st.booleans())
    def truncate(self, pick: int, share: float, names_end: bool) -> None:
        seq_id = self.filled()[pick % len(self.filled())]
        length = len(self.sequences[seq_id].tokens)
        start = max(1, round(share * length))
        self.cache.seq_remove(seq_id, start, length if names_end else -1)
        self.model.truncate(self.sequences[seq_id], start)

    # -- tokens

    @precondition(lambda self: self.empty())
    @rule(pick=picks, tokens=token_lists)
    def seq_match(self, pick: int, tokens: list[int]) -> None:
        self.match(self.empty()[pick % len(self.empty())], tokens)

    @precondition(lambda self: self.free_ids())
    @rule(namespace=namespaces, tokens=token_lists)
    def serve(self, namespace: str | None, tokens: list[int]) -> None:
        """Serve a request: take a sequence, attach the cached prefix, compute the rest."""
        seq_id = self.new(namespace)
        n_matched = self.match(seq_id, tokens)
        if self.reserve_and_compute(seq_id, tokens[n_matched:]):
            self.commit_one(seq_id)

    @precondition(lambda self: self.settled())
    @rule(pick=picks, tokens=token_lists)
    def append(self, pick: int, tokens: list[int]) -> None:
        seq_id = self.settled()[pick % len(self.settled())]
        if self.reserve_and_compute(seq_id, tokens):
            self.commit_one(seq_id)

    @precondition(lambda self: self.settled())
    @rule(pick=picks, tokens=token_lists)
    def reserve(self, pick: int, tokens: list[int]) -> None:
        self.reserve_and_compute(self.settled()[pick % len(self.settled())], tokens)

    @precondition(lambda self: self.reserved())
    @rule(pick=picks)
    def commit(self, pick: int) -> None:
        self.commit_one(self.reserved()[pick % len(self.reserved())])

    @precondition(lambda self: self.reserved())
    @rule(pick=picks, share=st.floats(0, 1))
    def commit_in_part(self, pick: int, share: float) -> None:
        seq_id = self.reserved()[pick % len(self.reserved())]
        sequence = self.sequences[seq_id]
        n_tokens = max(1, round(share * len(sequence.reserved)))
        self.cache.commit(seq_id, n_tokens)
        self.model.commit(sequence, n_tokens)

    @precondition(lambda self: self.reserved())
    @rule(pick=picks)
    def rollback(self, pick: int) -> None:
        seq_id = self.reserved()[pick % len(self.reserved())]
        self.cache.rollback(seq_id)
        self.model.rollback(self.sequences[seq_id])

    @precondition(lambda self: self.model.cached)
    @rule()
    def drop_cached(self) -> None:
        self.cache.drop_cached()
        self.model.drop_cached()

    def new(self, namespace: str | None) -> int:
        seq_id = self.free_ids()[0]
        assert self.cache.seq_new(namespace or "", common=namespace is None) == seq_id
        self.sequences[seq_id] = Sequence(namespace)
        return seq_id

    def match(self, seq_id: int, tokens: list[int]) -> int:
        n_matched = self.cache.seq_match(seq_id, tokens)
        sequence = self.sequences[seq_id]
        assert n_matched == self.model.match(sequence, tokens)
        return n_matched

    def reserve_and_compute(self, seq_id: int, tokens: list[int]) -> bool:
        """Reserve blocks and write the values; return False if there was no room."""
        sequence = self.sequences[seq_id]
        length = len(sequence.tokens)
        if length + len(tokens) > self.cache.max_length:
            with pytest.raises(RequestTooLongError):
                self.cache.reserve(seq_id, tokens)
            return False
        if not self.model.reserve(sequence, tokens):
            with pytest.raises(KvCacheFullError):
                self.cache.reserve(seq_id, tokens)
            return False
        self.cache.reserve(seq_id, tokens)
        blocks = self.cache.block_table(seq_id)
        values = keys_and_values(sequence.tokens + tokens)
        for position in range(length, len(values)):
            block, slot = divmod(position, self.cache.block_size)
            self.storage[blocks[block]][slot] = values[position]
        return True

    def commit_one(self, seq_id: int) -> None:
        self.cache.commit(seq_id)
        self.model.commit(self.sequences[seq_id], len(self.sequences[seq_id].reserved))

    # -- calls that must fail; the invariants see that they change nothing

    @precondition(lambda self: self.reserved())
    @rule(pick=picks)
    def disturb_a_reservation(self, pick: int) -> None:
        seq_id = self.reserved()[pick % len(self.reserved())]
        for call in (
            lambda: self.cache.reserve(seq_id, [1]),
            lambda: self.cache.commit(seq_id, 0),
            lambda: self.cache.commit(seq_id, len(self.sequences[seq_id].reserved) + 1),
            lambda: self.cache.seq_remove(seq_id),
            lambda: self.cache.seq_match(seq_id, [1, 1]),
            lambda: self.cache.seq_copy(seq_id, seq_id, 0),
        ):
            with pytest.raises(EngineError):
                call()

    @precondition(lambda self: self.settled())
    @rule(pick=picks)
    def ask_for_the_impossible(self, pick: int) -> None:
        seq_id = self.settled()[pick % len(self.settled())]
        length = len(self.sequences[seq_id].tokens)
        unknown = min(set(range(-1, 7)) - set(self.sequences))
        for call in (
            lambda: self.cache.seq_remove(seq_id, length + 1),
            lambda: self.cache.seq_remove(seq_id, 0, length + 1),
            lambda: self.cache.seq_copy(seq_id, seq_id, 0),
            lambda: self.cache.seq_copy(seq_id, unknown, 0),
            lambda: self.cache.seq_copy(unknown, seq_id, 0),
            lambda: self.cache.reserve(seq_id, []),
            lambda: self.cache.reserve(unknown, [1]),
            lambda: self.cache.seq_length(unknown),
            lambda: self.cache.seq_exclusive_blocks(unknown),
        ):
            with pytest.raises(InvalidRequestError):
                call()
        with pytest.raises(EngineError):
            self.cache.commit(seq_id)
        self.cache.rollback(seq_id)  # nothing to do

    # -- invariants after every step

    @invariant()
    def cache_and_model_agree(self) -> None:
        cache = self.cache
        cache.check_integrity()
        assert cache.used_sequences == len(self.sequences)
        assert cache.free_blocks == self.model.n_free
        assert cache.cached_blocks == len(self.model.cached)
        block_of_model: dict[int, Block] = {}
        number_of: dict[int, int] = {}
        for seq_id, sequence in self.sequences.items():
            assert cache.seq_exists(seq_id)
            assert cache.seq_length(seq_id) == len(sequence.tokens)
            assert cache.tokens(seq_id) == sequence.tokens
            held = set(sequence.blocks) | set(sequence.blocks_before or ())
            assert cache.seq_exclusive_blocks(seq_id) == sum(block.holders == 1 for block in held)
            # The same blocks shared between the same sequences, whatever their numbers.
            for number, block in zip(cache.block_table(seq_id), sequence.blocks, strict=True):
                assert block_of_model.setdefault(number, block) is block
                assert number_of.setdefault(id(block), number) == number

    @invariant()
    def every_sequence_reads_its_own_history(self) -> None:
        for seq_id, sequence in self.sequences.items():
            blocks = self.cache.block_table(seq_id)
            read = [value for block in blocks for value in self.storage[block]]
            expected = keys_and_values(sequence.tokens + sequence.reserved)
            assert read[: len(expected)] == expected

    def teardown(self) -> None:
        """Check that nothing is used once all sequences are removed and the cache is dropped."""
        if not hasattr(self, "cache"):
            return
        for seq_id in self.sequences:
            self.cache.rollback(seq_id)
            self.cache.seq_remove(seq_id)
        self.cache.check_integrity()
        assert self.cache.used_sequences == 0
        assert self.cache.free_blocks + self.cache.cached_blocks == self.cache.total_blocks
        self.cache.drop_cached()
        assert self.cache.free_blocks == self.cache.total_blocks


KvCacheMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
TestHistories = KvCacheMachine.TestCase


def make(**changes: object) -> _core.KvCache:
    options = {
        "n_blocks": 8,
        "block_size": 4,
        "n_parallel": 2,
        "max_length": 32,
        "copy_block": lambda group, source, target: None,
    }
    return _core.KvCache(**(options | changes))


@pytest.mark.parametrize("size", ["n_blocks", "block_size", "n_parallel", "max_length"])
def test_sizes_must_be_positive(size: str) -> None:
    with pytest.raises(ConfigError, match=f"{size} is 0; it must be at least 1"):
        make(**{size: 0})


def test_tokens_may_be_an_array_or_any_sequence() -> None:
    cache = make()
    seq_id = cache.seq_new()
    for tokens in (np.array([1, 2], np.int32), [3], (4,), range(5, 7), np.array([7], np.uint8)):
        cache.reserve(seq_id, tokens)
        cache.commit(seq_id)
    assert cache.tokens(seq_id) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("tokens", [[1.5], [-1], [2**31], "12", None, 3, [[1]], np.zeros(2)])
def test_tokens_of_another_kind_are_refused(tokens: object) -> None:
    cache = make()
    seq_id = cache.seq_new()
    with pytest.raises(InvalidRequestError, match="tokens"):
        cache.reserve(seq_id, tokens)
    assert cache.free_blocks == cache.total_blocks
    cache.check_integrity()


def test_what_copy_block_raises_reaches_the_caller_and_nothing_has_changed() -> None:
    class DiskFullError(Exception):
        pass

    def copy_block(group: int, source: int, target: int) -> None:
        raise DiskFullError(f"{source} -> {target}")

    cache = make(copy_block=copy_block)
    src, dst = cache.seq_new(), cache.seq_new()
    cache.reserve(src, range(6))
    cache.commit(src)
    with pytest.raises(DiskFullError, match="1 -> 2"):
        cache.seq_copy(src, dst, 6)
    assert cache.seq_length(dst) == 0
    assert cache.free_blocks == 6
    cache.check_integrity()


def test_copy_block_may_not_change_the_cache() -> None:
    cache = make(copy_block=lambda group, source, target: cache.seq_remove(0))
    src, dst = cache.seq_new(), cache.seq_new()
    cache.reserve(src, range(6))
    cache.commit(src)
    with pytest.raises(EngineError, match="copy_block"):
        cache.seq_copy(src, dst, 6)
    assert cache.tokens(src) == list(range(6))
    cache.check_integrity()
