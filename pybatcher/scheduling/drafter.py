"""`Drafter`: proposes draft tokens of one sequence that are worth a row of the next step."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .images import FIRST_IMAGE_ID

__all__ = ["LEAST_LONGEST_REST", "Drafter", "PromptLookup", "Terms"]

LEAST_LONGEST_REST = 7
"""Steps: the longest rest if a search costs almost nothing. The rests are then 0, 1, 3 and 7.

A rest is the number of steps for which a sequence is not searched.
"""

_PRIORS = (0.2, 0.4, 0.5)  # chance of a draft token after a match of 2, 3, more tokens, before data
_PRIOR_WEIGHT = 4.0  # verified tokens that a prior counts as
_DECAY = 0.97  # weight that a verified token keeps when the next of its kind is verified
_SHORTEST = 2  # tokens of the shortest match
_LONGEST = 8  # tokens of the longest match that is searched for
_MOST_PLACES = 16  # that one search compares
_BUCKETS = 4096  # a power of two
_NOWHERE = array("i", [-1]) * _BUCKETS
_SPREAD = 0x9E37  # odd: neighbouring token ids fall into different buckets


class Terms(NamedTuple):
    """Thresholds of a step for drafts. Chances are between 0 and 1.

    row: the least chance of acceptance at which a draft token is worth its row.
    search: the least chance at which it is worth the search for it as well.
    longest_rest: the most steps between two searches of a text without good drafts;
        LEAST_LONGEST_REST or more.
    """

    row: float
    search: float
    longest_rest: int


class Drafter:
    """Drafts the next tokens of one sequence, and estimates how often its drafts are accepted.

    Each draft is verified against the tokens that follow, even if it got no rows. A text that
    begins to repeat itself is therefore noticed without spending rows on it, and a text that stops
    repeating itself gets no more drafts. A text whose drafts do not pay for the search is searched
    in fewer and fewer steps: with small models a search costs a considerable part of a row.

    output: the tokens that came after the prompt before the drafter was made.
    rest: number of steps after this one until the next call of `draft` pays.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        end_token_ids: Collection[int],
        output: Sequence[int] = (),
    ) -> None:
        self.rest = 0
        self._next_rest = 0
        self._lookup = PromptLookup((*prompt, *output))
        self._end_token_ids = end_token_ids
        self._chances = [_Chance(prior) for prior in _PRIORS]
        self._n_taken = len(output)  # tokens of the output that the lookup has
        self._draft: list[int] = []  # the latest one, with the tokens that got no rows
        self._chance = self._chances[0]
        self._pays = False  # the draft is likely enough to be worth the search

    @property
    def has_read(self) -> bool:
        """True once all first tokens are indexed; `draft` indexes the later output itself."""
        return not self._lookup.n_unindexed

    def read(self, count: int) -> int:
        """Index `count` more of the first tokens, or all that are left; returns how many."""
        return self._lookup.index(count)

    def draft(self, output: list[int], n_most: int, terms: Terms) -> tuple[int, ...]:
        """Return the draft tokens that should have rows, at most `n_most` (1 or more); sets `rest`.

        output: all tokens after the prompt; the new ones verify the last draft.
        The draft has no end token: nothing is computed after one. It has no image id.
        """
        self.rest = 0
        self._take(output[self._n_taken :], terms.longest_rest)
        self._draft, n_common = self._lookup.draft(n_most)
        if n_common and max(self._draft) >= FIRST_IMAGE_ID:  # no model samples an image
            images = (i for i, token in enumerate(self._draft) if token >= FIRST_IMAGE_ID)
            self._draft = self._draft[: next(images)]
        if not self._draft:
            self._lengthen_rest(terms.longest_rest)
            return ()
        self._chance = self._chances[min(n_common - 2, len(self._chances) - 1)]
        self._pays = self._chance.now > terms.search
        return self._worth_rows(terms)

    def before_end(self, draft: Sequence[int]) -> tuple[int, ...]:
        """Return the tokens of a draft before an end token."""
        for i, token in enumerate(draft):
            if token in self._end_token_ids:
                return tuple(draft[:i])
        return tuple(draft)

    def _worth_rows(self, terms: Terms) -> tuple[int, ...]:
        """Return the tokens of the draft that are likely enough, up to an end token."""
        chance = self._chance.now
        if chance <= terms.row:
            return ()
        # Token i is accepted only with all before it: chance ** i may not be below terms.row.
        return self.before_end(self._draft[: int(math.log(terms.row) / math.log(chance))])

    def _take(self, tokens: list[int], longest_rest: int) -> None:
        """Verify the last draft against the new tokens, and add them to the lookup."""
        self._n_taken += len(tokens)
        if tokens and self._draft:
            for drafted, token in zip(self._draft, tokens, strict=False):
                self._chance.note(drafted == token)
                if drafted != token:
                    break
            if self._draft[0] != tokens[0]:
                self._lengthen_rest(longest_rest)
            elif self._pays:
                self._next_rest = 0
        self._lookup.extend(tokens)

    def _lengthen_rest(self, longest_rest: int) -> None:
        self.rest = self._next_rest
        first = longest_rest // LEAST_LONGEST_REST
        self._next_rest = min(2 * self._next_rest + first, longest_rest)


@dataclass(slots=True)
class _Chance:
    """The chance that a draft token is accepted if all draft tokens before it are."""

    prior: float
    right: float = 0.0
    verified: float = 0.0

    def note(self, right: bool) -> None:
        """Count one verified token; earlier ones lose weight."""
        self.right = self.right * _DECAY + right
        self.verified = self.verified * _DECAY + 1.0

    @property
    def now(self) -> float:
        """The chance, between 0 and 1."""
        return (self.prior * _PRIOR_WEIGHT + self.right) / (_PRIOR_WEIGHT + self.verified)


class PromptLookup:
    """The tokens of one sequence, and an index of the places of their pairs.

    It finds earlier occurrences of the last tokens, and the tokens after them: prompt lookup
    decoding (Saxena 2023; n-gram matching in the sequence's own tokens, no second model) with the
    match finder of LZ77 coders: a chain of earlier places with the same last two tokens, of which a
    bounded number is visited, the latest first.

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
