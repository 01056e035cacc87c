"""`CharacterMap`: the replacement of characters that SentencePiece compiles into a model.

`tokenizers` has `Precompiled` for it. That replaces a whole grapheme of up to five bytes by the
shortest of its beginnings that the map has, and so drops combining marks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from typing import Any

from tokenizers import Tokenizer as TokenizerBackend
from tokenizers import normalizers

__all__ = ["CharacterMap", "map_characters"]

_MAX_KNOWN = 2**16  # pairs of characters whose replacement is kept
_LABEL = 2**31 | 0xFF


class CharacterMap:
    """A normaliser for `Normalizer.custom`, of any thread.

    At each place of a text, the longest text that the map has is replaced, as in SentencePiece.

    data: the map: the size of a trie in bytes (uint32), the trie as an array of Darts-clone, and
        the replacements, each ended by a zero byte. Numbers are little-endian.
    kept: texts that are not changed.
    """

    def __init__(self, data: bytes, kept: Sequence[str] = ()) -> None:
        size = int.from_bytes(data[:4], "little")
        trie = data[4 : 4 + size]
        self._units = [int.from_bytes(trie[i : i + 4], "little") for i in range(0, len(trie), 4)]
        self._replacements = data[4 + size :]
        found = "|".join(map(re.escape, sorted(kept, key=len, reverse=True)))
        self._kept = re.compile(found) if kept else None
        self._known: dict[str, tuple[int, str]] = {}

    def normalize(self, text: Any) -> None:
        """Normalise a `NormalizedString` in place; its beginning keeps its place in the input."""
        before = text.normalized
        after = self.normalize_str(before)
        if after == before:
            return
        if len(after) > len(before):
            text.append(after[len(before) :])
        elif len(after) < len(before):
            numbers = count()
            text.filter(lambda _: next(numbers) < len(after))
        characters = iter(after)
        text.map(lambda _: next(characters))

    def normalize_str(self, text: str) -> str:
        """Return the normalised text."""
        parts, at = [], 0
        while at < len(text):
            if self._kept is not None and (kept := self._kept.match(text, at)) and kept[0]:
                parts.append(kept[0])
                at = kept.end()
                continue
            found = self._known.get(text[at : at + 2])
            n_characters, replacement = found or self._longest(text, at)
            if n_characters:
                parts.append(replacement)
                at += n_characters
            else:
                parts.append(text[at])
                at += 1
        return "".join(parts)

    def _longest(self, text: str, at: int) -> tuple[int, str]:
        """Return how many characters are replaced, and by which text; 0 for none."""
        units, node, best, value = self._units, 0, 0, 0
        node = _offset(units[0]) if units else 0
        end, ends = at, len(text) == at + 1
        try:
            for end in range(at, len(text)):
                for byte in text[end].encode():
                    node ^= byte
                    unit = units[node]
                    if unit & _LABEL != byte:
                        raise IndexError
                    node ^= _offset(unit)
                if unit >> 8 & 1:
                    best, value = end + 1 - at, units[node] & (2**31 - 1)
        except IndexError:  # the trie has no longer text
            ends = end <= at + 1  # what follows the two characters has no effect
        stop = self._replacements.find(b"\0", value)
        replacement = self._replacements[value:stop] if best and stop >= 0 else b""
        found = best, replacement.decode(errors="replace")
        if ends and len(self._known) < _MAX_KNOWN:
            self._known[text[at : at + 2]] = found
        return found


def map_characters(backend: TokenizerBackend, data: bytes, kept: Sequence[str] = ()) -> None:
    """Put a `CharacterMap` in the place of the first normaliser of a complete tokenizer.

    The library cannot write such a tokenizer as JSON; its attribute `definition` is the JSON from
    before.
    """
    before: Any = backend.normalizer
    is_list = isinstance(before, normalizers.Sequence)
    others = [before[i] for i in range(1, len(before))] if is_list else []
    definition = backend.to_str()
    first = normalizers.Normalizer.custom(CharacterMap(data, kept))
    backend.normalizer = normalizers.Sequence([first, *others])
    backend.definition = definition  # type: ignore[attr-defined]


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)
