"""`TrimmedText`: passes text on without the blanks at its end, which wait for what follows."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["TrimmedText"]

_BLANKS = " \t\r\n"


class TrimmedText:
    """Text of one part of a response, as it comes. Blanks are passed on with the text after them.

    on_text: is given the text.
    """

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._blanks: list[str] = []

    def add(self, text: str) -> None:
        """Add text."""
        kept = text.rstrip(_BLANKS)
        if kept:
            self._on_text(self.take_blanks() + kept)
        if len(kept) < len(text):
            self._blanks.append(text[len(kept) :])

    def take_blanks(self) -> str:
        """Return the blanks that wait; they wait no longer."""
        blanks = "".join(self._blanks)
        self._blanks = []
        return blanks
