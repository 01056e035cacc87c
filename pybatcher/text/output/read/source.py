"""`TextSource`: a text that arrives in pieces, read by generators that wait for more of it.

A reader is a generator: it yields when it needs more text, and returns its result. Readers call
    each other by `yield from`, so that the code for a format reads as one, however the text is cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

from .markers import Markers

__all__ = ["BLANKS", "MAX_CALL_CHARACTERS", "MalformedCallError", "Reading", "TextSource"]

T = TypeVar("T")
Reading = Generator[None, None, T]

MAX_CALL_CHARACTERS = 2**20
BLANKS = re.compile(r"[ \t\r\n]*")


class MalformedCallError(Exception):
    """Text that was read as a call is none. The message has the reason and stays internal."""


class TextSource:
    """The text that was fed and not read yet, with the methods that read it.

    No text is scanned twice, except an end of the text that may become a marker: the text that is
    kept between two feeds is shorter than the longest marker.

    ended: no text follows. is_cut: the text was to go on, so that its end may be the beginning of a
        marker.
    is_partial: the text that is left is the beginning of a text that was looked for, at the end of
        a text that was cut.
    listener: called with all text that is read; None for no listener.
    """

    def __init__(self) -> None:
        self._text = ""
        self._position = 0
        self.ended = False
        self.is_cut = False
        self.is_partial = False
        self.listener: Callable[[str], None] | None = None
        self._recorded: list[str] | None = None
        self._recorded_length = 0

    def feed(self, text: str) -> None:
        """Add text at the end."""
        self._text = self._text[self._position :] + text
        self._position = 0

    def record(self) -> None:
        """Begin a new record of the text that is read."""
        self._recorded, self._recorded_length = [], 0

    def recorded(self) -> str:
        """Return the text read since `record`, and end the record."""
        parts, self._recorded = self._recorded or [], None
        return "".join(parts)

    def take(self, length: int) -> str:
        """Read `length` characters, which must be available.

        Raises MalformedCallError when a record becomes too long, after the text was read.
        """
        end = self._position + length
        text = self._text[self._position : end]
        self._position = end
        self.is_partial = False
        if self._recorded is not None:
            self._recorded.append(text)
            self._recorded_length += length
        if self.listener is not None:
            self.listener(text)
        if self._recorded is not None and self._recorded_length > MAX_CALL_CHARACTERS:
            raise MalformedCallError(f"it is longer than {MAX_CALL_CHARACTERS} characters")
        return text

    @property
    def ends_cut(self) -> bool:
        """True if the text was cut, and nothing is left but the beginning of a marker."""
        return self.is_cut and (self.is_partial or self._position == len(self._text))

    def take_partial(self, shortest: int = 1) -> str:
        """Read the beginning of a marker at the end of a text that was cut; "" for other text, and
        for fewer characters than `shortest`.
        """
        length = len(self._text) - self._position
        return self.take(length) if self.is_partial and length >= shortest else ""

    def _room(self) -> int:
        """Return the number of characters to read at once, so that a record ends at the same
        character however the text is cut.
        """
        if self._recorded is None:
            return len(self._text)
        return MAX_CALL_CHARACTERS + 1 - self._recorded_length

    def peek(self) -> Reading[str]:
        """Return the next character without reading it; "" at the end of the text."""
        while self._position == len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._position]

    def literal(self, *texts: str) -> Reading[str]:
        """Read the longest of these texts that comes next; "" if none does."""
        while True:
            rest = self._text[self._position : self._position + max(map(len, texts))]
            may_go_on = any(len(rest) < len(text) and text.startswith(rest) for text in texts)
            if may_go_on and not self.ended:
                yield
                continue
            longest = max((text for text in texts if rest.startswith(text)), key=len, default="")
            if may_go_on and self.is_cut and len(longest) < len(rest):
                self.is_partial = True
                return ""
            return self.take(len(longest)) if longest else ""

    def run(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Read all next characters that match. pattern: `[...]*`."""
        parts = []
        while True:
            found = pattern.match(self._text, self._position)
            if found and found.end() > self._position:
                parts.append(self.take(min(found.end() - self._position, self._room())))
                continue
            if self._position < len(self._text) or self.ended:
                return "".join(parts)
            yield

    def blanks(self) -> Reading[str]:
        """Read the blanks that come next."""
        return (yield from self.run(BLANKS))

    def until(
        self,
        markers: Markers,
        on_text: Callable[[str], None],
        *,
        most: int | None = None,
        shortest: int = 2,
    ) -> Reading[str]:
        """Read the text before the next marker and return that marker, which is not read.

        on_text: called with the text as soon as it cannot belong to a marker.
        most: most characters to read. Returns "" when they are used up, and at the end.

        The beginning of a marker at the end of a text that was cut is not read (`take_partial`), if
        it has `shortest` characters or more.
        """
        self.is_partial = False
        while True:
            ended = self.ended and not self.is_cut
            at, marker = markers.find(self._text, self._position, ended=ended)
            if at > self._position:
                length = min(at - self._position, self._room())
                if most is not None:
                    if not (length := min(length, most)):
                        return ""
                    most -= length
                on_text(self.take(length))
                continue
            if marker or (self.ended and at == len(self._text)):
                return marker
            if self.ended:
                if len(self._text) - at < shortest:
                    on_text(self.take(len(self._text) - at))
                self.is_partial = self._position < len(self._text)
                return ""
            yield
