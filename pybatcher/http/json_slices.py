"""`read_json`: the value of a JSON text of any size, read in slices, with other threads between."""

from __future__ import annotations

import codecs
import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, TypeAlias

__all__ = ["TooManyValuesError", "read_json"]

_Bytes: TypeAlias = bytes | bytearray
_Scan: TypeAlias = Callable[[str, int], tuple[Any, int]]
_scan_string: _Scan = scanstring

_SLICE = 2**14  # bytes that are decoded, and characters that are scanned, at once
_ESCAPES = 12  # characters of two escapes, of which each is half of a surrogate pair
_SPACES = re.compile(r"[ \t\n\r]*+")
# What can be cut off a string: it ends between characters, and not between two surrogates.
_PIECE = re.compile(
    r'(?:[^"\\]++'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}"
    r"(?:\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?=\\u(?![dD][c-fC-F])[0-9a-fA-F]{4}|\\[^u]|[^\\]))"
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"
    r"|\\[^u])*+",
    re.DOTALL,
)


class TooManyValuesError(ValueError):
    """The text has more values than it may have."""


def read_json(parts: Sequence[_Bytes], most_values: int) -> Any:
    """Return the value of a JSON text as `json.loads` does, without holding up other threads.

    `json.loads` keeps the lock of the interpreter to its end: a second for some texts of 12 MB.
    This one offers it to others after 16 KiB each. It takes longer itself, some texts several times
    as long.

    parts: the text, one after the other. most_values: commas and opening brackets, in strings too.
    Raises ValueError (TooManyValuesError) and RecursionError.
    """
    return _Reader(parts, most_values).whole()


class _Reader:
    """Reads a text through a window of one to two slices.

    A value that ends in the window is left to json's own scanner. One that does not is gone into.
    """

    def __init__(self, parts: Sequence[_Bytes], most_values: int) -> None:
        first = b"".join(bytes(part[:4]) for part in parts[:4])
        decoder = codecs.getincrementaldecoder(json.detect_encoding(first))
        self._decode = decoder("surrogatepass").decode
        self._slices = iter(_slices(parts))
        self._scan: _Scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
        self._most_values = most_values
        self._n_values = 0
        self._window = ""
        self._at = 0  # the place in the window
        self._n_before = 0  # characters before the window
        self._is_all = False  # the window has the end of the text
        self._n_wasted = 0  # characters that were scanned in vain
        self._may_take_many = False  # since the last slice, members were not taken together yet

    def whole(self) -> Any:
        """Return the value of the whole text."""
        value = self._value()
        if self._peek():
            raise self._wrong("there is more after the value")
        return value

    # -- the window ---------------------------------------------------------------------------

    def _more(self) -> bool:
        """Add a slice to the window, without what was read of it; False at the end of the text."""
        if self._is_all:
            return False
        time.sleep(0)  # others have a turn
        piece = next(self._slices, None)
        self._is_all = piece is None
        if piece is not None:
            self._n_values += sum(map(piece.count, (b",", b"[", b"{")))
            if self._n_values > self._most_values:
                raise TooManyValuesError
        self._n_before += self._at
        self._window = self._window[self._at :] + self._decode(piece or b"", self._is_all)
        self._at = 0
        self._may_take_many = True
        return True

    def _peek(self) -> str:
        """Go to what comes after spaces, and return its first character; "" at the end."""
        while True:
            place = _SPACES.match(self._window, self._at)
            assert place is not None
            self._at = place.end()
            if len(self._window) - self._at >= _SLICE or not self._more():
                return self._window[self._at : self._at + 1]

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"{what} (character {self._n_before + self._at})")

    # -- values -------------------------------------------------------------------------------

    def _value(self) -> Any:
        first = self._peek()
        if first == '"':
            return self._string()
        is_long = first in ("{", "[")
        if not is_long or self._may_waste():
            begin = self._at
            try:
                value, end = self._scan(self._window, begin)
            except (ValueError, StopIteration):
                if not is_long:
                    raise self._wrong("no value is here") from None
                self._n_wasted += len(self._window) - begin
            else:
                if not is_long and end == len(self._window) and not self._is_all:
                    raise self._wrong(f"a number has more than {_SLICE} characters")
                self._at = end
                return value
        return self._object() if first == "{" else self._array()

    def _may_waste(self) -> bool:
        """Return whether no more was scanned in vain than was read."""
        return self._n_wasted <= self._n_before + self._at + 4 * _SLICE

    def _object(self) -> dict[str, Any]:
        self._at += 1
        found: dict[str, Any] = {}
        if self._ends("}"):
            return found
        while True:
            if (many := self._many("{}")) is not None:
                found.update(many)
            if self._peek() != '"':
                raise self._wrong("no name of a property is here")
            name = self._string()
            if self._peek() != ":":
                raise self._wrong("no colon is here")
            self._at += 1
            found[name] = self._value()
            if not self._goes_on("}"):
                return found

    def _array(self) -> list[Any]:
        self._at += 1
        found: list[Any] = []
        if self._ends("]"):
            return found
        while True:
            if (many := self._many("[]")) is not None:
                found += many
            found.append(self._value())
            if not self._goes_on("]"):
                return found

    def _many(self, brackets: str) -> Any:
        """Return the members that the window has, and go behind the comma after them.

        None: there are none, or the last comma of the window is inside of one of them.
        """
        if not self._may_take_many or not self._may_waste():
            return None
        self._may_take_many = False
        end = self._window.rfind(",", self._at)
        if end < 0:
            return None
        text = brackets[0] + self._window[self._at : end] + brackets[1]
        try:
            many, length = self._scan(text, 0)
        except (ValueError, StopIteration):
            many, length = None, 0
        if length < len(text) or not many:
            self._n_wasted += len(text)
            return None
        self._at = end + 1
        return many

    def _ends(self, bracket: str) -> bool:
        if self._peek() != bracket:
            return False
        self._at += 1
        return True

    def _goes_on(self, bracket: str) -> bool:
        """Go behind a comma, or the bracket at the end; return whether it was a comma."""
        if self._ends(bracket):
            return False
        if not self._ends(","):
            raise self._wrong("neither a comma nor an end is here")
        return True

    # -- strings ------------------------------------------------------------------------------

    def _string(self) -> str:
        try:
            found: tuple[str, int] = _scan_string(self._window, self._at + 1)
        except ValueError:
            return self._long_string()
        self._at = found[1]
        return found[0]

    def _long_string(self) -> str:
        self._at += 1
        pieces: list[str] = []
        while True:
            while len(self._window) - self._at < _ESCAPES and self._more():
                pass
            place = _PIECE.match(self._window, self._at)
            assert place is not None
            end = place.end()
            try:
                pieces.append(_scan_string(self._window[self._at : end] + '"', 0)[0])
            except ValueError:
                raise self._wrong("a character is not allowed in this string") from None
            is_stuck, self._at = end == self._at, end
            if self._window[end : end + 1] == '"':
                self._at += 1
                return "".join(pieces)
            if is_stuck:
                raise self._wrong("a string does not end, or has a wrong escape")


def _slices(parts: Sequence[_Bytes]) -> Iterable[_Bytes]:
    for part in parts:
        for begin in range(0, len(part), _SLICE):
            yield part[begin : begin + _SLICE]
