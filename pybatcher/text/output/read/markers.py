"""`Markers`: finds the first of several fixed texts in a text that is not complete yet."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["Markers"]


class Markers:
    """A set of texts to look for, none of them empty.

    The match that begins first wins; of several that begin together, the longest. The result does
    not depend on how the text was cut into pieces.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        longest_first = sorted(set(texts), key=lambda text: (-len(text), text))
        self._pattern = (
            re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        )
        self._beginnings = {text[:n] for text in longest_first for n in range(1, len(text))}
        self._longest = max(map(len, longest_first), default=0)

    def find(self, text: str, start: int, *, ended: bool) -> tuple[int, str]:
        """Search for a marker from `start` on. Return its position and text.

        Without one the text is "", and the position is the start of a suffix that may still become
        a marker, or the text's length. ended: no text follows, so no suffix can become one.
        """
        if self._pattern is None:
            return len(text), ""
        found = self._pattern.search(text, start)
        waits_from = len(text) if ended else self._incomplete(text, start)
        if found is not None and found.start() < waits_from:
            return found.start(), found.group()
        return waits_from, ""

    def _incomplete(self, text: str, start: int) -> int:
        """Return the position of the longest suffix that is a prefix of a marker."""
        for begin in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[begin:] in self._beginnings:
                return begin
        return len(text)
