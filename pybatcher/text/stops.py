"""`StopTexts` and `StopMatcher`: find stop strings in a text that arrives in pieces."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

__all__ = ["StopMatcher", "StopTexts"]


class StopTexts:
    """The automaton of some stop strings. Immutable: any number of matchers share one.

    stops: texts, none of them empty.

    The automaton is that of Aho and Corasick (CACM 18(6), 1975). A state is a number, and its
    prefix is a prefix of a stop string; state 0 has the empty one. The states of a stop string that
    shares no prefix with an earlier one follow each other, so that most transitions need no table:
    a state takes about 25 bytes. Construction takes microseconds for each character: construct a
    long one on another thread.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.texts = tuple(stops)
        """The stop strings."""
        self._characters = ["\0"]  # the last character of each state's prefix
        self._parents = array("i", [-1])  # the state of each prefix without its last character
        self._branches: dict[tuple[int, str], int] = {}  # transitions to other states than the next
        self.depths = array("i", [0])
        """The length of each state's prefix."""
        self.match_lengths = array("i", [0])
        """The length of the longest stop string that each state's prefix ends with, or 0."""
        for stop in stops:
            self._insert(stop)
        self._fallbacks = array("i", bytes(4 * len(self.depths)))
        self._link_fallbacks()

    def step(self, state: int, character: str) -> int:
        """Return the state after `character`: the longest prefix that the text now ends with."""
        while True:
            after = self._child(state, character)
            if after:
                return after
            if not state:
                return 0
            state = self._fallbacks[state]

    def _child(self, state: int, character: str) -> int:
        """Return the state whose prefix has one character more; 0 if there is none."""
        following = state + 1
        if (
            following < len(self.depths)
            and self._characters[following] == character
            and self._parents[following] == state
        ):
            return following
        return self._branches.get((state, character), 0)

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            after = self._child(state, character)
            if not after:
                after = len(self.depths)
                if after != state + 1:
                    self._branches[state, character] = after
                self._characters.append(character)
                self._parents.append(state)
                self.depths.append(self.depths[state] + 1)
                self.match_lengths.append(0)
            state = after
        self.match_lengths[state] = len(stop)

    def _link_fallbacks(self) -> None:
        """Compute the longest proper suffix of each prefix that is a prefix too.

        By depth, since the fallback of a prefix is shorter than the prefix.
        """
        for state in sorted(range(1, len(self.depths)), key=self.depths.__getitem__):
            if self.depths[state] == 1:
                continue
            fallback = self.step(self._fallbacks[self._parents[state]], self._characters[state])
            self._fallbacks[state] = fallback
            if not self.match_lengths[state]:
                self.match_lengths[state] = self.match_lengths[fallback]


class StopMatcher:
    """Passes text on until a stop string occurs; no part of that stop string is passed on.

    The match that ends first wins (so that generation ends as early as it can); of several that end
    together, the longest. The result does not depend on how the text was cut into pieces. The text
    that is held back is always the longest suffix that is a proper prefix of a stop string: the
    depth of the automaton's state is its length, and a character costs amortised constant time.

    stops: the automaton, or the texts to make one of; without any, all text passes at once.

    Text can be hidden, such as that of a special token: it may be in a stop string, and is never
    passed on.
    """

    def __init__(self, stops: StopTexts | Sequence[str] = ()) -> None:
        self._stops = stops if isinstance(stops, StopTexts) else StopTexts(stops)
        self._state = 0
        self._held = ""
        self._hidden: list[tuple[int, int]] = []  # parts of the held text: begin and end
        self._matched = False

    def occurs(self, text: str) -> bool:
        """Return whether a stop string contains a text."""
        return any(text in stop for stop in self._stops.texts)

    def push(self, text: str, *, hidden: bool = False) -> tuple[str, bool]:
        """Add text; return the text that may be passed on, and whether a stop string was found.

        After a match every call returns ("", True).
        """
        if self._matched:
            return "", True
        stops = self._stops
        if not stops.texts:
            return "" if hidden else text, False
        pending = self._held + text
        if hidden:
            self._hidden.append((len(self._held), len(pending)))
        state = self._state
        for index, character in enumerate(text, start=len(self._held) + 1):
            state = stops.step(state, character)
            if stops.match_lengths[state]:
                self._matched = True
                self._held = ""
                return self._shown(pending, index - stops.match_lengths[state]), True
        self._state = state
        passed = len(pending) - stops.depths[state]
        self._held = pending[passed:]
        return self._shown(pending, passed), False

    def flush(self) -> str:
        """Return the text that was held back. No text follows, so no stop string ends there."""
        held, self._held = self._held, ""
        self._state = 0
        return self._shown(held, len(held))

    def _shown(self, pending: str, end: int) -> str:
        """Return the text before `end` without hidden parts, and forget these."""
        if not self._hidden:
            return pending[:end]
        parts, begin = [], 0
        for first, last in self._hidden:
            parts.append(pending[begin : min(first, end)])
            begin = min(last, end)
        self._hidden = [(max(a - end, 0), b - end) for a, b in self._hidden if b > end]
        return "".join((*parts, pending[begin:end]))
