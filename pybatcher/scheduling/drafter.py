"""`Drafter`: how much of what may come next is worth a row of the next step."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .lookup import PromptLookup

__all__ = ["LEAST_LONGEST_REST", "Drafter", "Terms"]

LEAST_LONGEST_REST = 7
"""Steps: the longest rest where looking costs next to nothing. Then the rests are 0, 1, 3 and 7."""

_PRIORS = (0.2, 0.4, 0.5)  # chance of a guess founded on 2, 3, more tokens; of none seen yet
_PRIOR_WEIGHT = 4.0  # guesses that a prior stands for
_FORGETTING = 0.97  # what a guess still counts when another of its kind has been judged


class Terms(NamedTuple):
    """What guesses have to bring now. Chances are between 0 and 1.

    row: how likely a guess must be to be worth its row.
    look: and to be worth looking for it as well.
    longest_rest: steps that a text without good guesses is left alone at last, LEAST_LONGEST_REST
        or more.
    """

    row: float
    look: float
    longest_rest: int


class Drafter:
    """Guesses the next tokens of one sequence, and learns how often it is right.

    Each guess is judged by the tokens that come, whether it was given rows or
    not. So a text that begins to repeat itself is noticed without a row spent on
    finding out, and one that ceases to is left alone again. A text whose guesses
    do not pay for looking is looked at in fewer and fewer steps: that a search
    costs little next to a row is not true of every model.

    output: what came after the prompt before this began.
    rest: steps after this one until it is worth asking again.
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
        self._n_taken = len(output)  # of the output, that were looked at
        self._guess: list[int] = []
        self._chance = self._chances[0]
        self._pays = False  # the guess is likely enough to be worth the look

    @property
    def has_read(self) -> bool:
        """All that it began with; further output it reads when it makes a draft."""
        return not self._lookup.n_unindexed

    def read(self, count: int) -> int:
        """Read `count` more tokens of that, or what is left of it; returns how many."""
        return self._lookup.index(count)

    def draft(self, output: list[int], n_most: int, terms: Terms) -> tuple[int, ...]:
        """The tokens that should have rows, at most `n_most` (at least 1).

        output: what came after the prompt.
        An end token is never among them: nothing is to be computed after it.
        """
        self.rest = 0
        self._take(output[self._n_taken :], terms.longest_rest)
        self._guess, n_common = self._lookup.propose(n_most)
        if not n_common:
            self._get_tired(terms.longest_rest)
            return ()
        self._chance = self._chances[min(n_common - 2, len(self._chances) - 1)]
        chance = self._chance.now
        self._pays = chance > terms.look
        if chance <= terms.row:
            return ()
        # The last is right only if all are: as many as are likely enough to be.
        draft = self._guess[: int(math.log(terms.row) / math.log(chance))]
        for i, token in enumerate(draft):
            if token in self._end_token_ids:
                return tuple(draft[:i])
        return tuple(draft)

    def _take(self, tokens: list[int], longest_rest: int) -> None:
        """These came: judge the last guess by them, and know them from now on."""
        self._n_taken += len(tokens)
        if tokens and self._guess:
            for guessed, token in zip(self._guess, tokens, strict=False):
                self._chance.judge(guessed == token)
                if guessed != token:
                    break
            if self._guess[0] != tokens[0]:
                self._get_tired(longest_rest)
            elif self._pays:
                self._next_rest = 0
        self._lookup.extend(tokens)

    def _get_tired(self, longest_rest: int) -> None:
        self.rest = self._next_rest
        first = longest_rest // LEAST_LONGEST_REST
        self._next_rest = min(2 * self._next_rest + first, longest_rest)


@dataclass(slots=True)
class _Chance:
    """How likely the next token of a guess is right when those before it were."""

    prior: float
    right: float = 0.0
    judged: float = 0.0

    def judge(self, right: bool) -> None:
        self.right = self.right * _FORGETTING + right
        self.judged = self.judged * _FORGETTING + 1.0

    @property
    def now(self) -> float:
        return (self.prior * _PRIOR_WEIGHT + self.right) / (_PRIOR_WEIGHT + self.judged)
