"""`FakeKv`: the engine's KV bookkeeping in plain Python, with tokens in place of keys and values.

Blocks hold the tokens that were written to them, and a sequence's tokens are read from its blocks,
not stored beside them. A block that is wrongly shared, copied or evicted therefore shows as wrong
tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import (
    EngineError,
    InvalidRequestError,
    KvCacheFullError,
    NoFreeSequenceError,
    RequestTooLongError,
)

__all__ = ["FakeKv"]

# The namespace, the number of common blocks before the block, and all tokens up to its end. The
# namespace is None in common blocks.
_Key = tuple[str | None, int, tuple[int, ...]]


@dataclass(slots=True, eq=False)
class _Block:
    tokens: list[int] = field(default_factory=list)
    refcount: int = 1
    key: _Key | None = None  # set when the block is full; `match` finds the block by this key


@dataclass(slots=True)
class _Sequence:
    namespace: str | None
    blocks: list[_Block] = field(default_factory=list)

    def keys(self, tokens: tuple[int, ...], n_before: int) -> list[_Key]:
        """Return the keys of blocks that the sequence may use for the end of `tokens`.

        n_before: the number of its blocks before that one.
        """
        before = self.blocks[:n_before]
        n_common = sum(b.key is not None and b.key[0] is None for b in before)
        keys: list[_Key] = [(None, n_before, tokens)] if n_common == n_before else []
        return keys if self.namespace is None else [*keys, (self.namespace, n_common, tokens)]


class FakeKv:
    """Sequences over a fixed number of reference-counted blocks, with a prefix cache.

    As in the engine, a call that raises has changed nothing.
    """

    def __init__(self, n_blocks: int, block_size: int, n_parallel: int, max_length: int) -> None:
        self.n_blocks = n_blocks
        self.block_size = block_size
        self.n_parallel = n_parallel
        self.max_length = max_length
        self.free_blocks = n_blocks
        self._sequences: dict[int, _Sequence] = {}
        self._index: dict[_Key, _Block] = {}
        # Least recently used first. It is no OrderedDict, which hashes a key, here as long as a
        # prompt, for each value that is read.
        self._cached: dict[_Key, _Block] = {}

    @property
    def cached_blocks(self) -> int:
        """Number of blocks that no sequence holds and that `match` can find."""
        return len(self._cached)

    @property
    def used_sequences(self) -> int:
        """Number of sequence ids in use."""
        return len(self._sequences)

    def new(self, namespace: str | None) -> int:
        """Take the lowest free id. Raises NoFreeSequenceError.

        namespace: None: sequences of every namespace share the blocks of this one.
        Raises TypeError for a namespace that is not valid UTF-8, as the engine does.
        """
        try:
            (namespace or "").encode()
        except UnicodeEncodeError as error:
            raise TypeError(f"namespace: {error}") from error
        for seq_id in range(self.n_parallel):
            if seq_id not in self._sequences:
                self._sequences[seq_id] = _Sequence(namespace)
                return seq_id
        raise NoFreeSequenceError(
            f"all {self.n_parallel} sequences are in use; free one or raise n_parallel"
        )

    def tokens(self, seq_id: int) -> list[int]:
        """Return the tokens in the sequence's blocks. Raises InvalidRequestError."""
        return [token for block in self._sequence(seq_id).blocks for token in block.tokens]

    def length(self, seq_id: int) -> int:
        """Return the number of tokens in the sequence. Raises InvalidRequestError."""
        blocks = self._sequence(seq_id).blocks
        return sum(len(block.tokens) for block in blocks[-1:]) + self.block_size * max(
            0, len(blocks) - 1
        )

    def exclusive_blocks(self, seq_id: int) -> int:
        """Return the number of blocks that only this sequence holds."""
        return sum(block.refcount == 1 for block in self._sequence(seq_id).blocks)

    def match(self, seq_id: int, tokens: Sequence[int]) -> int:
        """Attach the longest cached prefix; return its length, at most len(tokens) - 1.

        Raises InvalidRequestError if the sequence is not empty.
        """
        sequence = self._sequence(seq_id)
        if sequence.blocks:
            raise InvalidRequestError(f"seq_id {seq_id} holds tokens; match only an empty sequence")
        for end in range(self.block_size, len(tokens), self.block_size):
            keys = sequence.keys(tuple(tokens[:end]), len(sequence.blocks))
            block = next((self._index[key] for key in keys if key in self._index), None)
            if block is None:
                break
            self._hold(block)
            sequence.blocks.append(block)
        return len(sequence.blocks) * self.block_size

    def copy(self, src: int, dst: int, n_tokens: int) -> None:
        """Start `dst` with `n_tokens` of `src`: share full blocks, copy a partial last one.

        Raises InvalidRequestError if `dst` is not empty or the namespaces differ, and
        KvCacheFullError if there is no block for the copy.
        """
        source, target = self._sequence(src), self._sequence(dst)
        is_shared = source.namespace in (None, target.namespace)
        if target.blocks or src == dst or not is_shared:
            raise InvalidRequestError(
                f"seq_id {dst} must be empty, not {src}, and of its namespace"
            )
        if not 0 <= n_tokens <= self.length(src):
            raise InvalidRequestError(
                f"n_tokens is {n_tokens}; seq_id {src} has {self.length(src)}"
            )
        n_full, rest = divmod(n_tokens, self.block_size)
        if rest and self.free_blocks + self.cached_blocks < 1:
            raise KvCacheFullError("no KV block is left for the copy of a partial block")
        for block in source.blocks[:n_full]:
            self._hold(block)
            target.blocks.append(block)
        if rest:
            target.blocks.append(self._allocate())
            target.blocks[-1].tokens = source.blocks[n_full].tokens[:rest]

    def remove(self, seq_id: int, start: int, end: int) -> None:
        """Drop the tokens [start, length); start 0 also frees the id.

        Copies the kept part of a shared block. Raises InvalidRequestError if [start, end)
        is not the sequence's tail, and KvCacheFullError if there is no block for the copy.
        """
        sequence, length = self._sequence(seq_id), self.length(seq_id)
        if end not in (-1, length) or not 0 <= start <= length:
            raise InvalidRequestError(
                f"[{start}, {end}) is no tail of seq_id {seq_id}, length {length}"
            )
        n_kept, rest = divmod(start, self.block_size)
        cuts_shared = rest and start < length and sequence.blocks[n_kept].refcount > 1
        if cuts_shared and not self.free_blocks + self.cached_blocks:
            raise KvCacheFullError("no KV block is left for what stays of a shared block")
        for block in reversed(sequence.blocks[n_kept + bool(rest) :]):
            self._release(block)
        del sequence.blocks[n_kept + bool(rest) :]
        if rest and len(sequence.blocks[-1].tokens) > rest:
            cut = sequence.blocks.pop()
            kept = cut.tokens[:rest]
            self._release(cut)
            sequence.blocks.append(self._allocate())
            sequence.blocks[-1].tokens = kept
        if start == 0:
            del self._sequences[seq_id]

    def append(self, additions: Mapping[int, Sequence[int]]) -> None:
        """Append tokens to several sequences, to all or to none.

        Raises RequestTooLongError and KvCacheFullError.
        """
        self.check_room(additions)
        for seq_id, tokens in additions.items():
            for token in tokens:
                self._append_one(self._sequences[seq_id], token)

    def check_room(self, additions: Mapping[int, Sequence[int]]) -> None:
        """Raise RequestTooLongError or KvCacheFullError if `append` would; change nothing."""
        needed = 0
        for seq_id, tokens in additions.items():
            length = self.length(seq_id)
            if length + len(tokens) > self.max_length:
                raise RequestTooLongError(
                    f"seq_id {seq_id} would have {length + len(tokens)} tokens; "
                    f"a sequence has {self.max_length} positions"
                )
            blocks_after = -(-(length + len(tokens)) // self.block_size)
            needed += blocks_after - len(self._sequence(seq_id).blocks)
        if needed > self.free_blocks + self.cached_blocks:
            raise KvCacheFullError(
                f"{needed} KV blocks are needed and {self.free_blocks + self.cached_blocks} left"
            )

    def check_integrity(self) -> None:
        """Recount all blocks from the sequences; raise EngineError for a wrong count."""
        held: dict[int, int] = {}
        for seq_id, sequence in self._sequences.items():
            for block in sequence.blocks:
                held[id(block)] = held.get(id(block), 0) + 1
                if block.refcount < 1:
                    raise EngineError(f"seq_id {seq_id} holds a block that is not in use")
            if any(len(block.tokens) != self.block_size for block in sequence.blocks[:-1]):
                raise EngineError(f"seq_id {seq_id} has a partial block before its last")
            for block in sequence.blocks:
                if block.refcount < held[id(block)]:
                    raise EngineError(f"a block of seq_id {seq_id} has too low a refcount")
        if self.free_blocks + self.cached_blocks + len(held) != self.n_blocks:
            raise EngineError(
                f"{self.free_blocks} free + {self.cached_blocks} cached + {len(held)} used "
                f"blocks are not {self.n_blocks}"
            )
        if any(block.refcount for block in self._cached.values()):
            raise EngineError("a cached block is in use")

    def _sequence(self, seq_id: int) -> _Sequence:
        try:
            return self._sequences[seq_id]
        except KeyError:
            raise InvalidRequestError(f"seq_id {seq_id} is not in use") from None

    def _append_one(self, sequence: _Sequence, token: int) -> None:
        if not sequence.blocks or len(sequence.blocks[-1].tokens) == self.block_size:
            sequence.blocks.append(self._allocate())
        block = sequence.blocks[-1]
        block.tokens.append(token)
        if len(block.tokens) == self.block_size:
            content = tuple(token for block in sequence.blocks for token in block.tokens)
            self._register(sequence, sequence.keys(content, len(sequence.blocks) - 1))

    def _register(self, sequence: _Sequence, keys: Sequence[_Key]) -> None:
        """Index the full last block; if an equal block exists, use that one instead."""
        known = next((self._index[key] for key in keys if key in self._index), None)
        if known is None:
            sequence.blocks[-1].key = keys[-1]
            self._index[keys[-1]] = sequence.blocks[-1]
        else:
            self._hold(known)
            self._release(sequence.blocks[-1])
            sequence.blocks[-1] = known

    def _allocate(self) -> _Block:
        if not self.free_blocks:
            key = next(iter(self._cached))
            del self._cached[key], self._index[key]
            self.free_blocks += 1
        self.free_blocks -= 1
        return _Block()

    def _hold(self, block: _Block) -> None:
        if block.refcount == 0 and block.key is not None:
            del self._cached[block.key]
        block.refcount += 1

    def _release(self, block: _Block) -> None:
        block.refcount -= 1
        if block.refcount == 0:
            if block.key is None:
                self.free_blocks += 1
            else:
                self._cached[block.key] = block
