"""A plain model of the KV cache, against which its tests compare it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Block:
    """`content`: where the index has it, its name space (None: common), the number of common blocks
    before it, and all tokens to its end.
    """

    content: tuple[str | None, int, tuple[int, ...]] | None = None
    holders: int = 1


@dataclass
class Sequence:
    namespace: str | None
    tokens: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    blocks_before: list[Block] | None = None  # the reservation


class Model:
    """The KV cache in its simplest form, without regard to speed."""

    def __init__(self, n_blocks: int, block_size: int) -> None:
        self.n_free = n_blocks
        self.block_size = block_size
        self.cached: list[Block] = []  # oldest first
        self.index: dict[tuple[str | None, int, tuple[int, ...]], Block] = {}

    def n_available(self) -> int:
        return self.n_free + len(self.cached)

    def take(self) -> Block:
        if self.n_free:
            self.n_free -= 1
        else:
            content = self.cached.pop(0).content
            assert content is not None
            del self.index[content]
        return Block()

    def hold(self, block: Block) -> Block:
        if block.holders == 0:
            self.cached.remove(block)
        block.holders += 1
        return block

    def drop(self, block: Block) -> None:
        block.holders -= 1
        if block.holders == 0 and block.content is None:
            self.n_free += 1
        elif block.holders == 0:
            self.cached.append(block)

    def drop_cached(self) -> None:
        for block in self.cached:
            assert block.content is not None
            del self.index[block.content]
        self.n_free += len(self.cached)
        self.cached.clear()

    def match(self, sequence: Sequence, tokens: list[int]) -> int:
        end = self.block_size
        while end < len(tokens):
            contents = self.contents(sequence, sequence.blocks, tokens[:end])
            known = [content for content in contents if content in self.index]
            if not known:
                break
            sequence.blocks.append(self.hold(self.index[known[0]]))
            end += self.block_size
        sequence.tokens = tokens[: end - self.block_size]
        return len(sequence.tokens)

    @staticmethod
    def contents(
        sequence: Sequence, before: list[Block], tokens: list[int]
    ) -> list[tuple[str | None, int, tuple[int, ...]]]:
        """The contents of blocks that hold the end of `tokens` for a sequence, the best first."""
        n_common = sum(block.content is not None and block.content[0] is None for block in before)
        spaces = {None, sequence.namespace} if n_common == len(before) else {sequence.namespace}
        return [
            (space, n_common, tuple(tokens))
            for space in sorted(spaces, key=lambda space: space is not None)
        ]

    def copy(self, src: Sequence, dst: Sequence, n_tokens: int) -> bool:
        n_full, n_partial = divmod(n_tokens, self.block_size)
        if n_partial and not self.n_available():
            return False
        dst.blocks = [self.hold(block) for block in src.blocks[:n_full]]
        dst.blocks += [self.take()] if n_partial else []
        dst.tokens = src.tokens[:n_tokens]
        return True

    def truncate(self, sequence: Sequence, n_tokens: int) -> None:
        sequence.tokens = sequence.tokens[:n_tokens]
        while len(sequence.blocks) * self.block_size >= n_tokens + self.block_size:
            self.drop(sequence.blocks.pop())

    def reserve(self, sequence: Sequence, tokens: list[int]) -> bool:
        """Reserve blocks; return False if there is no room."""
        n_tokens = len(sequence.tokens) + len(tokens)
        n_new = -(-n_tokens // self.block_size) - len(sequence.blocks)
        blocks_before = list(sequence.blocks)
        if len(sequence.tokens) % self.block_size:
            last = sequence.blocks[-1]
            if last.holders > 1 or (last.content is not None and n_new < self.n_available()):
                if n_new + 1 > self.n_available():
                    return False
                sequence.blocks[-1] = self.take()  # blocks_before goes on holding the old one
            elif n_new > self.n_available():
                return False
            elif last.content is not None:
                del self.index[last.content]
                last.content = None
        if n_new > self.n_available():
            return False
        sequence.blocks += [self.take() for _ in range(n_new)]
        sequence.reserved = tokens
        sequence.blocks_before = blocks_before
        return True

    def commit(self, sequence: Sequence, n_tokens: int) -> None:
        assert sequence.blocks_before is not None
        sequence.reserved = sequence.reserved[:n_tokens]
        n_blocks = -(-(len(sequence.tokens) + n_tokens) // self.block_size)
        while len(sequence.blocks) > n_blocks:
            self.drop(sequence.blocks.pop())
        for block in set(sequence.blocks_before) - set(sequence.blocks):
            self.drop(block)
        first = len(sequence.tokens) // self.block_size
        sequence.tokens = sequence.tokens + sequence.reserved
        sequence.reserved, sequence.blocks_before = [], None
        for i in range(first, len(sequence.tokens) // self.block_size):
            end = (i + 1) * self.block_size
            contents = self.contents(sequence, sequence.blocks[:i], sequence.tokens[:end])
            known = [content for content in contents if content in self.index]
            if known:
                own, sequence.blocks[i] = sequence.blocks[i], self.hold(self.index[known[0]])
                self.drop(own)
            else:
                sequence.blocks[i].content = contents[-1]
                self.index[contents[-1]] = sequence.blocks[i]

    def rollback(self, sequence: Sequence) -> None:
        if sequence.blocks_before is None:
            return
        for block in set(sequence.blocks) - set(sequence.blocks_before):
            self.drop(block)
        sequence.blocks = sequence.blocks_before
        sequence.reserved, sequence.blocks_before = [], None


def keys_and_values(tokens: list[int]) -> list[int]:
    """Return the value at each position of a sequence, a hash of all tokens up to it."""
    values = []
    state = 0
    for token in tokens:
        state = hash((state, token))
        values.append(state)
    return values
