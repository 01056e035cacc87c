"""`SharedPrefixes`: prompt prefixes that are computed once and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import (
    InvalidRequestError,
    NoFreeSequenceError,
    PybatcherError,
    RequestTooLongError,
)
from .kv_allocator import KvAllocator, blocks_for, way_out

__all__ = ["SharedPrefix", "SharedPrefixes", "common_length"]


@dataclass(slots=True, eq=False)
class SharedPrefix:
    """The common beginning of many prompts, kept in a sequence of its own.

    Has the members of a `LiveRequest` that the scheduling of prompt rows needs.

    namespace: the namespace whose requests share it; None: requests of every namespace.
    holders: number of calls of `Scheduler.add_prefix` that have not been undone.
    seq_id: -1 until it has a sequence.
    is_suspect: it was in a step that failed, and is computed alone until it is complete.
    error: the reason why it could not be computed; it is not kept any more then.
    """

    tokens: tuple[int, ...]
    namespace: str | None
    holders: int = 1
    seq_id: int = -1
    num_computed_tokens: int = 0
    is_suspect: bool = False
    error: PybatcherError | None = None

    @property
    def num_tokens_to_compute(self) -> int:
        """Number of tokens without KV."""
        return len(self.tokens) - self.num_computed_tokens

    def next_tokens(self, count: int) -> tuple[int, ...]:
        """Return the next `count` tokens to compute."""
        return self.tokens[self.num_computed_tokens : self.num_computed_tokens + count]

    def samples_after(self, count: int) -> bool:
        """Return False: nothing is sampled after a shared prefix."""
        return False

    def targets_after(self, count: int) -> tuple[int, ...]:
        """Return no targets: a shared prefix is not scored."""
        return ()

    def pooling_after(self, count: int) -> None:
        """Return None: a shared prefix is not embedded."""


class SharedPrefixes:
    """The shared prefixes by namespace and tokens, and the KV blocks that they keep.

    max_prefixes: number of sequences of the KvAllocator that are reserved for prefixes.
    have_grown: a prefix got a sequence, and it is not yet checked that waiting requests still fit.
    """

    def __init__(self, kv: KvAllocator, max_prefixes: int) -> None:
        self._kv = kv
        self._max_prefixes = max_prefixes
        self.have_grown = False
        self._prefixes: dict[tuple[str | None, tuple[int, ...]], SharedPrefix] = {}

    def __iter__(self) -> Iterator[SharedPrefix]:
        return iter(self._prefixes.values())

    def __len__(self) -> int:
        return len(self._prefixes)

    @property
    def blocks(self) -> int:
        """KV blocks that all prefixes take once they are computed."""
        return sum(blocks_for(len(prefix.tokens), self._kv.block_size) for prefix in self)

    @property
    def waiting(self) -> list[SharedPrefix]:
        """Prefixes without a sequence. While there are any, no newcomer is admitted."""
        return [prefix for prefix in self if prefix.seq_id < 0]

    def add(self, prefix: SharedPrefix) -> SharedPrefix:
        """Add a prefix, or a holder to an equal prefix; returns the prefix that is kept.

        Raises InvalidRequestError for a prefix without tokens, NoFreeSequenceError past
        `max_prefixes`, and RequestTooLongError if positions or KV blocks do not suffice.
        """
        tokens, key = prefix.tokens, (prefix.namespace, prefix.tokens)
        if not tokens:
            raise InvalidRequestError("the shared prefix has no tokens; it must have at least one")
        known = self._prefixes.get(key)
        if known is not None:
            known.holders += 1
            return known
        if len(self) >= self._max_prefixes:
            raise NoFreeSequenceError(
                f"all {self._max_prefixes} shared prefixes are in use; remove one, or raise "
                "max_prefixes"
            )
        kv = self._kv
        positions = kv.max_sequence_length - 2
        room = (kv.kv_total_blocks - 1 - self.blocks) * kv.block_size
        if len(tokens) > min(positions, room):
            remedy = "shorten it or raise n_ctx" if room < positions else way_out(kv, "shorten it")
            raise RequestTooLongError(
                f"the shared prefix has {len(tokens)} tokens; there is room for "
                f"{max(min(positions, room), 0)}: {remedy}"
            )
        self._prefixes[key] = prefix
        return prefix

    def release(self, prefix: SharedPrefix, remove: Callable[[int], None]) -> None:
        """Remove one holder, and with the last one the prefix.

        remove: called with the prefix's sequence, if it has one. Sequences that share its blocks
        keep them.
        """
        prefix.holders -= 1
        if not prefix.holders and prefix.error is None:
            self._drop(prefix, remove)

    def fail(
        self, prefix: SharedPrefix, error: PybatcherError, remove: Callable[[int], None]
    ) -> None:
        """Drop a prefix that could not be computed, and set its `error` for its holders."""
        if prefix.error is None and prefix.holders:
            prefix.error = error
            self._drop(prefix, remove)

    def start(self, prefix: SharedPrefix) -> None:
        """Allocate a sequence and attach cached blocks; sets `seq_id` and `num_computed_tokens`."""
        is_common = prefix.namespace is None
        prefix.seq_id = self._kv.seq_new(prefix.namespace or "", common=is_common)
        self.have_grown = True
        prefix.num_computed_tokens = self._kv.seq_match(prefix.seq_id, prefix.tokens)

    def lose_kv(self) -> None:
        """Mark every prefix as not computed: the engine has forgotten all sequences."""
        for prefix in self:
            prefix.seq_id, prefix.num_computed_tokens = -1, 0

    def longest(self, tokens: Sequence[int], namespace: str) -> tuple[SharedPrefix | None, int]:
        """Return the prefix with the most leading tokens in common, and how many; not the last."""
        best, most = None, 0
        for prefix in self:
            if prefix.namespace in (None, namespace) and prefix.tokens[0] == tokens[0]:
                common = min(common_length(prefix.tokens, tokens), len(tokens) - 1)
                if common > most:
                    best, most = prefix, common
        return best, most

    def _drop(self, prefix: SharedPrefix, remove: Callable[[int], None]) -> None:
        del self._prefixes[prefix.namespace, prefix.tokens]
        seq_id, prefix.seq_id = prefix.seq_id, -1
        if seq_id >= 0:
            remove(seq_id)


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Count the leading tokens that two sequences have in common."""
    n = min(len(first), len(second))
    if first[:n] == second[:n]:
        return n
    pairs = zip(first, second, strict=False)
    return next(i for i, (a, b) in enumerate(pairs) if a != b)
