"""A plain model of the KV cache, against which its tests compare it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Page:
    """`content`: name space and all tokens to the page's end, where the index has it."""

    content: tuple[str, tuple[int, ...]] | None = None
    holders: int = 1


@dataclass
class Sequence:
    namespace: str
    tokens: list[int] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    pages_before: list[Page] | None = None  # the reservation


class Model:
    """The KV cache in its simplest form, without regard to speed."""

    def __init__(self, n_pages: int, block_size: int) -> None:
        self.n_free = n_pages
        self.block_size = block_size
        self.cached: list[Page] = []  # oldest first
        self.index: dict[tuple[str, tuple[int, ...]], Page] = {}

    def n_available(self) -> int:
        return self.n_free + len(self.cached)

    def take(self) -> Page:
        if self.n_free:
            self.n_free -= 1
        else:
            content = self.cached.pop(0).content
            assert content is not None
            del self.index[content]
        return Page()

    def hold(self, page: Page) -> Page:
        if page.holders == 0:
            self.cached.remove(page)
        page.holders += 1
        return page

    def drop(self, page: Page) -> None:
        page.holders -= 1
        if page.holders == 0 and page.content is None:
            self.n_free += 1
        elif page.holders == 0:
            self.cached.append(page)

    def drop_cached(self) -> None:
        for page in self.cached:
            assert page.content is not None
            del self.index[page.content]
        self.n_free += len(self.cached)
        self.cached.clear()

    def match(self, sequence: Sequence, tokens: list[int]) -> int:
        end = self.block_size
        while end < len(tokens):
            page = self.index.get((sequence.namespace, tuple(tokens[:end])))
            if page is None:
                break
            sequence.pages.append(self.hold(page))
            end += self.block_size
        sequence.tokens = tokens[: end - self.block_size]
        return len(sequence.tokens)

    def copy(self, src: Sequence, dst: Sequence, n_tokens: int) -> bool:
        n_full, n_partial = divmod(n_tokens, self.block_size)
        if n_partial and not self.n_available():
            return False
        dst.pages = [self.hold(page) for page in src.pages[:n_full]]
        dst.pages += [self.take()] if n_partial else []
        dst.tokens = src.tokens[:n_tokens]
        return True

    def truncate(self, sequence: Sequence, n_tokens: int) -> None:
        sequence.tokens = sequence.tokens[:n_tokens]
        while len(sequence.pages) * self.block_size >= n_tokens + self.block_size:
            self.drop(sequence.pages.pop())

    def reserve(self, sequence: Sequence, tokens: list[int]) -> bool:
        """Reserve blocks; return False if there is no room."""
        n_tokens = len(sequence.tokens) + len(tokens)
        n_new = -(-n_tokens // self.block_size) - len(sequence.pages)
        pages_before = list(sequence.pages)
        if len(sequence.tokens) % self.block_size:
            last = sequence.pages[-1]
            if last.holders > 1 or (last.content is not None and n_new < self.n_available()):
                if n_new + 1 > self.n_available():
                    return False
                sequence.pages[-1] = self.take()  # pages_before goes on holding the old one
            elif n_new > self.n_available():
                return False
            elif last.content is not None:
                del self.index[last.content]
                last.content = None
        if n_new > self.n_available():
            return False
        sequence.pages += [self.take() for _ in range(n_new)]
        sequence.reserved = tokens
        sequence.pages_before = pages_before
        return True

    def commit(self, sequence: Sequence, n_tokens: int) -> None:
        assert sequence.pages_before is not None
        sequence.reserved = sequence.reserved[:n_tokens]
        n_pages = -(-(len(sequence.tokens) + n_tokens) // self.block_size)
        while len(sequence.pages) > n_pages:
            self.drop(sequence.pages.pop())
        for page in set(sequence.pages_before) - set(sequence.pages):
            self.drop(page)
        first = len(sequence.tokens) // self.block_size
        sequence.tokens = sequence.tokens + sequence.reserved
        sequence.reserved, sequence.pages_before = [], None
        for i in range(first, len(sequence.tokens) // self.block_size):
            end = (i + 1) * self.block_size
            content = (sequence.namespace, tuple(sequence.tokens[:end]))
            if content in self.index:
                own, sequence.pages[i] = sequence.pages[i], self.hold(self.index[content])
                self.drop(own)
            else:
                sequence.pages[i].content = content
                self.index[content] = sequence.pages[i]

    def rollback(self, sequence: Sequence) -> None:
        if sequence.pages_before is None:
            return
        for page in set(sequence.pages) - set(sequence.pages_before):
            self.drop(page)
        sequence.pages = sequence.pages_before
        sequence.reserved, sequence.pages_before = [], None


def keys_and_values(namespace: str, tokens: list[int]) -> list[int]:
    """Return the value at each position of a sequence, a hash of all tokens up to it."""
    values = []
    state = hash(namespace)
    for token in tokens:
        state = hash((state, token))
        values.append(state)
    return values
