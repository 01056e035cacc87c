"""`PromptLookup`: finds earlier occurrences of a text's last tokens, and the tokens after them.

Prompt lookup decoding (Saxena 2023; n-gram matching in the sequence's own tokens, no second
model) with the match finder of LZ77 coders: a chain of earlier places with the same last two
tokens, of which a bounded number is visited, the latest first.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

__all__ = ["PromptLookup"]

_SHORTEST = 2  # tokens of the shortest match
_LONGEST = 8  # tokens of the longest match that is searched for
_MOST_PLACES = 16  # that one search compares
_BUCKETS = 4096  # a power of two
_NOWHERE = array("i", [-1]) * _BUCKETS
_SPREAD = 0x9E37  # odd: neighbouring token ids fall into different buckets


class PromptLookup:
    """The tokens of one sequence, and an index of the places of their pairs.

    Memory: two numbers a token and `_BUCKETS` more. A search takes a bounded time for any length
    of the text, and finds indexed places only.
    """

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens = list(tokens)
        # A place is the position after a pair. A chain runs from the latest place to earlier ones
        # of the same bucket, which may be places of other pairs.
        self._latest = _NOWHERE[:]
        self._earlier = [-1] * _SHORTEST

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text; index them if all tokens before them are indexed."""
        was_indexed = len(self._earlier) >= len(self._tokens)
        self._tokens += tokens
        if was_indexed:
            self.index(len(self._tokens))

    @property
    def n_unindexed(self) -> int:
        """Number of tokens that a search does not find yet."""
        return max(0, len(self._tokens) - len(self._earlier))

    def index(self, count: int) -> int:
        """Index `count` more tokens, or all that are left; returns how many."""
        tokens, latest, earlier = self._tokens, self._latest, self._earlier
        known = len(earlier)
        if count <= 0 or known >= len(tokens):
            return 0
        first, stop = tokens[known - 2], min(known + count, len(tokens))
        for place in range(known, stop):
            second = tokens[place - 1]
            # The hash of `_best_place`; calling a function would add a seventh to this loop.
            bucket = (first * _SPREAD + second) % _BUCKETS
            earlier.append(latest[bucket])
            latest[bucket] = place
            first = second
        return stop - known

    def draft(self, count: int) -> tuple[list[int], int]:
        """Return a draft of the next `count` tokens, and the length of the match it follows.

        The draft is a copy of the tokens after the longest match, the latest among equals. If
        these reach the end of the text, they are repeated. Returns ([], 0) without a match.
        """
        place, n_common = self._best_place()
        if not n_common:
            return [], 0
        found = self._tokens[place : place + count]
        if len(found) < count:
            found = (found * -(-count // len(found)))[:count]
        return found, n_common

    def _best_place(self) -> tuple[int, int]:
        """Return the place after the longest match, and the match's length; 0 without a match."""
        tokens = self._tokens
        if len(tokens) <= _SHORTEST:
            return 0, 0
        place = self._latest[(tokens[-2] * _SPREAD + tokens[-1]) % _BUCKETS]
        best, most = 0, _SHORTEST - 1
        for _ in range(_MOST_PLACES):
            if place < 0:
                break
            # A longer match agrees with the end at least one token further back than the best.
            if place > most and tokens[place - most - 1] == tokens[-most - 1]:
                n_common = self._n_common(place)
                if n_common > most:
                    best, most = place, n_common
                    if most == _LONGEST:
                        break
            place = self._earlier[place]
        return best, most if most >= _SHORTEST else 0

    def _n_common(self, place: int) -> int:
        """Return how many tokens before `place` equal those at the end, up to `_LONGEST`."""
        tokens = self._tokens
        limit = min(_LONGEST, place)
        for i in range(1, limit + 1):
            if tokens[place - i] != tokens[-i]:
                return i - 1
        return limit
