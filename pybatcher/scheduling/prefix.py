"""`SharedPrefixes`: tokens that many prompts begin with, each computed once and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import InvalidRequestError, NoFreeSequenceError, RequestTooLongError
from .kv_allocator import KvAllocator, blocks_for

__all__ = ["SharedPrefix", "SharedPrefixes", "common_length"]


@dataclass(slots=True, eq=False)
class SharedPrefix:
    """Tokens that many prompts begin with, kept in a sequence of their own.

    The same words as a `LiveRequest`, for what never draws a token. `holders`: so
    many asked for it and have not let go. seq_id: -1 until it has a sequence.
    """

    tokens: tuple[int, ...]
    namespace: str
    holders: int = 1
    seq_id: int = -1
    num_computed_tokens: int = 0

    @property
    def num_tokens_to_compute(self) -> int:
        """Tokens whose KV is not there yet."""
        return len(self.tokens) - self.num_computed_tokens

    def next_tokens(self, count: int) -> tuple[int, ...]:
        """The next `count` tokens to compute."""
        return self.tokens[self.num_computed_tokens : self.num_computed_tokens + count]

    def draws_after(self, count: int) -> bool:
        """Never: nothing is generated here."""
        return False

    def targets_after(self, count: int) -> tuple[int, ...]:
        """Nothing is asked about them."""
        return ()

    def pooling_after(self, count: int) -> None:
        """Nothing is asked about them."""


class SharedPrefixes:
    """Who they are, and what they take of KV for good.

    max_prefixes: so many sequences of the KvAllocator are theirs and never a request's.
    """

    def __init__(self, kv: KvAllocator, max_prefixes: int) -> None:
        self._kv = kv
        self._max_prefixes = max_prefixes
        self._prefixes: dict[tuple[str, tuple[int, ...]], SharedPrefix] = {}

    def __iter__(self) -> Iterator[SharedPrefix]:
        return iter(self._prefixes.values())

    def __len__(self) -> int:
        return len(self._prefixes)

    @property
    def blocks(self) -> int:
        """KV blocks that they take, or will."""
        return sum(blocks_for(len(prefix.tokens), self._kv.block_size) for prefix in self)

    @property
    def waiting(self) -> list[SharedPrefix]:
        """Those without a sequence. No newcomer is admitted before they have theirs."""
        return [prefix for prefix in self if prefix.seq_id < 0]

    def add(self, tokens: tuple[int, ...], namespace: str) -> SharedPrefix:
        """Hold a prefix, which has been there before or not.

        Raises InvalidRequestError for one without tokens, NoFreeSequenceError and
        RequestTooLongError where there is no room.
        """
        if not tokens:
            raise InvalidRequestError("the shared prefix has no tokens; it must have at least one")
        known = self._prefixes.get((namespace, tokens))
        if known is not None:
            known.holders += 1
            return known
        if len(self) >= self._max_prefixes:
            raise NoFreeSequenceError(
                f"all {self._max_prefixes} shared prefixes are in use; remove one, or raise "
                "max_prefixes"
            )
        kv = self._kv
        spare_blocks = kv.kv_total_blocks - 1 - self.blocks
        room = min(kv.max_sequence_length - 2, spare_blocks * kv.block_size)
        if len(tokens) > room:
            raise RequestTooLongError(
                f"the shared prefix has {len(tokens)} tokens; there is room for {max(room, 0)}: "
                "shorten it or raise n_ctx"
            )
        prefix = SharedPrefix(tokens, namespace)
        self._prefixes[namespace, tokens] = prefix
        return prefix

    def release(self, prefix: SharedPrefix, remove: Callable[[int], None]) -> None:
        """Let go of it once; when nobody holds it, its KV is its users' alone.

        remove: called with its sequence then, if it has one.
        """
        prefix.holders -= 1
        if prefix.holders:
            return
        del self._prefixes[prefix.namespace, prefix.tokens]
        if prefix.seq_id >= 0:
            remove(prefix.seq_id)
            prefix.seq_id = -1

    def start(self, prefix: SharedPrefix) -> None:
        """Give it its sequence, with what is there of it."""
        prefix.seq_id = self._kv.seq_new(prefix.namespace)
        prefix.num_computed_tokens = self._kv.seq_match(prefix.seq_id, prefix.tokens)

    def lose_kv(self) -> None:
        """The engine has forgotten all of them."""
        for prefix in self:
            prefix.seq_id, prefix.num_computed_tokens = -1, 0

    def longest(self, tokens: Sequence[int], namespace: str) -> tuple[SharedPrefix | None, int]:
        """The prefix that gives most of `tokens`, and how many; one token is left over."""
        best, most = None, 0
        for prefix in self:
            if prefix.namespace == namespace and prefix.tokens[0] == tokens[0]:
                common = min(common_length(prefix.tokens, tokens), len(tokens) - 1)
                if common > most:
                    best, most = prefix, common
        return best, most


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading tokens two sequences have in common."""
    n = min(len(first), len(second))
    if first[:n] == second[:n]:
        return n
    pairs = zip(first, second, strict=False)
    return next(i for i, (a, b) in enumerate(pairs) if a != b)
