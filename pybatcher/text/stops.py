"""`StopMatcher`: finds stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

__all__ = ["StopMatcher"]


class StopMatcher:
    """Passes text on until a stop string occurs; no part of that stop string is passed on.

    The match that ends first wins (so that generation ends as early as it can); of several that end
    together, the longest. The result does not depend on how the text was cut into pieces. The text
    that is held back is always the longest suffix that is a proper prefix of a stop string.

    stops: texts, none of them empty; without any, all text passes at once.

    Text can be hidden, such as that of a special token: it may be in a stop string, and is never
    passed on.

    An Aho-Corasick automaton (Aho and Corasick, CACM 18(6), 1975): the depth of its state is the
    length of that suffix, so that a character costs amortised constant time whatever the stops are.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._root = _build(stops)
        self._stops = tuple(stops)
        self._state = self._root
        self._held = ""
        self._hidden: list[tuple[int, int]] = []  # parts of the held text: begin and end
        self._matched = False

    def occurs(self, text: str) -> bool:
        """Return whether a stop string contains a text."""
        return any(text in stop for stop in self._stops)

    def push(self, text: str, *, hidden: bool = False) -> tuple[str, bool]:
        """Add text; return the text that may be passed on, and whether a stop string was found.

        After a match every call returns ("", True).
        """
        if self._matched:
            return "", True
        if not self._root.children:
            return "" if hidden else text, False
        pending = self._held + text
        if hidden:
            self._hidden.append((len(self._held), len(pending)))
        state = self._state
        for index, character in enumerate(text, start=len(self._held) + 1):
            state = _step(state, character, self._root)
            if state.match_length:
                self._matched = True
                self._held = ""
                return self._shown(pending, index - state.match_length), True
        self._state = state
        passed = len(pending) - state.depth
        self._held = pending[passed:]
        return self._shown(pending, passed), False

    def flush(self) -> str:
        """Return the text that was held back. No text follows, so no stop string ends there."""
        held, self._held = self._held, ""
        self._state = self._root
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


class _State:
    """A state of the automaton: a prefix of one or more stops.

    depth: its length. fallback: the longest proper suffix that is a prefix too. match_length:
        length of the longest stop that it ends with, or 0.
    """

    __slots__ = ("children", "depth", "fallback", "match_length")

    def __init__(self, depth: int) -> None:
        self.children: dict[str, _State] = {}
        self.depth = depth
        self.fallback: _State | None = None
        self.match_length = 0


def _step(state: _State, character: str, root: _State) -> _State:
    """Return the state after `character`: the longest prefix that the text now ends with."""
    node: _State | None = state
    while node is not None:
        child = node.children.get(character)
        if child is not None:
            return child
        node = node.fallback
    return root


def _build(stops: Sequence[str]) -> _State:
    root = _State(0)
    for stop in stops:
        node = root
        for character in stop:
            node = node.children.setdefault(character, _State(node.depth + 1))
        node.match_length = len(stop)
    root.match_length = 0
    queue = deque([root])
    while queue:  # by depth, so that a fallback is complete before it is needed
        node = queue.popleft()
        for character, child in node.children.items():
            child.fallback = root
            if node.fallback is not None:
                child.fallback = _step(node.fallback, character, root)
            if not child.match_length:
                child.match_length = child.fallback.match_length
            queue.append(child)
    return root
